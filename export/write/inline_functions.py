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

from causal_attn.export.forms.graph_function import GraphFunction
from causal_attn.machine.release import OLDEST, release

__all__ = ["DOMAIN", "write_functions"]

DOMAIN = "causal_attn"


def write_functions(model: ir.Model, functions: Iterable[GraphFunction]) -> str:
    """Replace calls of `functions` by their nodes, in place.

    Args:
        model: A model with calls in the domain `DOMAIN`.
        functions: Those that it may call.

    Returns:
        ``major.minor`` of the oldest ONNX Runtime that runs what was written.
    """
    called = {node.op_type for node in model.graph.all_nodes() if node.domain == DOMAIN}
    needed = [OLDEST]
    for written in functions:
        function = ir.serde.deserialize_function(parser.parse_function(written.text))
        if function.name not in called:
            continue
        needed.append(written.onnxruntime)
        model.functions[function.identifier()] = function
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    InlinePass()(model)
    model.opset_imports.pop(DOMAIN, None)
    return max(needed, key=release)
