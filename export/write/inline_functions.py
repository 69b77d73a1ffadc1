"""ONNX functions that a form calls, written into the graph in place of the calls.

torch has no op for a loop with its own graph. A form that needs one calls an ONNX function by
name and gives its text; afterwards the model has neither the function nor its domain, only
standard nodes, so that nothing downstream has to know.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnx import parser
from onnx_ir.passes.common import InlinePass

__all__ = ["DOMAIN", "write_functions"]

DOMAIN = "causal_attn"


def write_functions(model: ir.Model, texts: Iterable[str]) -> None:
    """Replace calls of the functions in `texts` by their nodes, in place.

    Args:
        model: A model with calls in the domain `DOMAIN`.
        texts: Functions in ONNX's text syntax (https://onnx.ai/onnx/repo-docs/Syntax.html).
    """
    called = {node.op_type for node in model.graph.all_nodes() if node.domain == DOMAIN}
    for text in texts:
        function = ir.serde.deserialize_function(parser.parse_function(text))
        if function.name not in called:
            continue
        model.functions[function.identifier()] = function
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    InlinePass()(model)
    model.opset_imports.pop(DOMAIN, None)
