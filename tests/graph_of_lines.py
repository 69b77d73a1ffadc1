"""A model file out of lines in ONNX's own text syntax, with inputs and outputs of any dims.

The syntax: https://onnx.ai/onnx/repo-docs/Syntax.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Dims", "save_graph"]

Dims = list[str | int]


def save_graph(
    path: Path,
    inputs: Mapping[str, Dims],
    outputs: Mapping[str, Dims],
    lines: str,
    *,
    stored: Mapping[str, Any] | None = None,
    types: Mapping[str, int] | None = None,
    otherwise: int = TensorProto.FLOAT,
) -> Path:
    """Write the checked model to `path`, which is returned.

    Args:
        path: A file.
        inputs: Names to dims.
        outputs: Likewise; of float32.
        lines: The nodes.
        stored: Initializers.
        types: Element types of inputs.
        otherwise: That of all other inputs.
    """
    graph = onnx.parser.parse_graph("g (float[1] unused) => (float[1] y) {" + lines + "}")
    kinds = {name: (types or {}).get(name, otherwise) for name in inputs}
    made = helper.make_graph(
        list(graph.node),
        "g",
        [helper.make_tensor_value_info(name, kinds[name], dims) for name, dims in inputs.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in outputs.items()
        ],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in (stored or {}).items()
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
