"""Nodes that a graph can do without are dropped, and nothing that it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import parser

from causal_attn.export.write.repeated_nodes import drop_repeated_nodes
from causal_attn.export.write.rotary import expand_angles

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def dropped(body: str, outputs: str = "float[A, B, C] y") -> tuple[ir.Model, ir.Model]:
    """The model of ``x [A, B, C]`` as it is written, and without what it can do without."""
    text = f'<ir_version: 10, opset_import: ["": 23]> g (float[A, B, C] x) => ({outputs}) {body}'
    before, after = (ir.serde.deserialize_model(parser.parse_model(text)) for _ in range(2))
    drop_repeated_nodes(after)
    return before, after


def ran(model: ir.Model) -> list[NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results: Any = session.run(None, {"x": X})
    return list(results)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


def equal(before: ir.Model, after: ir.Model) -> bool:
    return all(map(np.array_equal, ran(before), ran(after)))


def test_what_is_computed_twice_is_computed_once() -> None:
    before, after = dropped(
        "{ a = Cos (x)  b = Cos (x)  c = Sin (x)  d = Mul (a, b)  y = Add (d, c) }"
    )
    assert ops(after) == ["Cos", "Sin", "Mul", "Add"]
    assert equal(before, after)


def test_other_attributes_are_another_node() -> None:
    body = "{ a = Softmax <axis = 1> (x)  b = Softmax <axis = 2> (x)  y = Mul (a, b) }"
    before, after = dropped(body)
    assert ops(after) == ops(before)
    assert equal(before, after)


FLAT = "{ s = Constant <value_ints = [4, 6]> ()  t = Constant <value_ints = [2, 3, 4]> ()"


def test_a_reshape_of_a_reshape_is_one() -> None:
    body = f"{FLAT}  a = Reshape (x, s)  b = Reshape (a, t)  y = Reshape <allowzero = 1> (b, t) }}"
    before, after = dropped(body)
    assert ops(after) == ["Reshape"]
    assert equal(before, after)


def test_a_reshape_that_others_read_stays() -> None:
    body = f"{FLAT}  a = Reshape (x, s)  y = Reshape <allowzero = 1> (a, t)  z = Neg (a) }}"
    before, after = dropped(body, "float[A, B, C] y, float[D, E] z")
    assert sorted(ops(after)) == ["Neg", "Reshape", "Reshape"]
    assert equal(before, after)


def test_a_shape_that_may_copy_a_size_is_left_alone() -> None:
    body = """{ s = Constant <value_ints = [6, 4]> ()  t = Constant <value_ints = [0, 2, 2]> ()
      a = Reshape (x, s)  y = Reshape (a, t) }"""
    before, after = dropped(body)
    assert ops(after) == ["Reshape", "Reshape"]
    assert ran(after)[0].shape == (6, 2, 2)
    assert equal(before, after)


@pytest.mark.parametrize(("second", "expansions"), [("B", 2), ("D", 4)])
def test_angles_are_broadcast_once_for_each_size_of_a_batch(second: str, expansions: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 23]>
      g (float[B, 2, T, 4] q, float[{second}, 2, T, 4] k, float[1, T, 2] c, float[1, T, 2] s)
      => (float[B, 2, T, 4] y, float[{second}, 2, T, 4] z)
      {{ y = RotaryEmbedding (q, c, s)  z = RotaryEmbedding (k, c, s) }}"""
    model = ir.serde.deserialize_model(parser.parse_model(text))
    expand_angles(model)
    assert ops(model).count("Expand") == expansions
