"""A constant that is written as a number takes part in the float64 run at float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from causal_attn.verify.oracle.float64 import GraphRun


@pytest.mark.parametrize("constant", [{"value_float": 0.5}, {"value_floats": [0.5, 0.25]}])
def test_a_constant_in_numbers_is_widened(constant: dict[str, Any], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["factor"], **constant),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "scaled", [x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    onnx.save(model, tmp_path / "model.onnx")
    inputs = np.array([1 / 3, 1e-9])
    found = GraphRun(tmp_path / "model.onnx", wide=True)({"x": inputs})["y"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, inputs * np.array([*constant.values()]).reshape(-1))
