"""ONNX Runtime's operators against ONNX Runtime: no dependence that it shows is missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from test_influence_soundness import positions_of, reached

from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.program import read_program
from causal_attn.verify.influence.registry import MICROSOFT, Mode
from causal_attn.verify.influence.tensor import Array, Tensor, constant, unknown

ort = pytest.importorskip("onnxruntime")

RANDOM = np.random.default_rng(11)


def some(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def quantized(*shape: int) -> Array:
    return RANDOM.integers(0, 250, shape).astype(np.uint8)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


ZERO = np.array(128, np.uint8)
QKV = [some(1, 3, 8) for _ in range(3)]
PAST = [some(1, 2, 2, 4) for _ in range(2)]
LENGTHS = [np.array([4], np.int32), np.array(5, np.int32)]
NODES: dict[str, tuple[str, list[Array | None], int, dict[str, Any]]] = {
    "multi-head": ("MultiHeadAttention", [*QKV], 1, {"num_heads": 2}),
    "multi-head, unidirectional": (
        "MultiHeadAttention", [*QKV], 1, {"num_heads": 2, "unidirectional": 1}),
    "multi-head, fewer queries": (
        "MultiHeadAttention", [some(1, 2, 8), *QKV[1:]], 1,
        {"num_heads": 2, "unidirectional": 1}),
    "multi-head, padding": (
        "MultiHeadAttention", [*QKV, None, np.array([[1, 1, 0]], np.int32)], 1, {"num_heads": 2}),
    "multi-head, bias": (
        "MultiHeadAttention", [*QKV, some(24), None, some(1, 2, 3, 3)], 1, {"num_heads": 2}),
    "multi-head, past": (
        "MultiHeadAttention", [*QKV, None, None, None, *PAST], 3,
        {"num_heads": 2, "unidirectional": 1}),
    "grouped": (
        "GroupQueryAttention",
        [some(1, 3, 32), some(1, 3, 16), some(1, 3, 16), None, None,
         np.array([2], np.int32), np.array(3, np.int32)],
        3, {"num_heads": 4, "kv_num_heads": 2}),
    "grouped, window": (
        "GroupQueryAttention",
        [some(1, 3, 32), some(1, 3, 16), some(1, 3, 16), None, None,
         np.array([2], np.int32), np.array(3, np.int32)],
        3, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 2}),
    "grouped, past": (
        "GroupQueryAttention",
        [some(1, 1, 32), some(1, 1, 16), some(1, 1, 16), some(1, 2, 2, 8), some(1, 2, 2, 8),
         np.array([2], np.int32), np.array(3, np.int32)],
        3, {"num_heads": 4, "kv_num_heads": 2}),
    "grouped, not causal": (
        "GroupQueryAttention",
        [some(1, 3, 32), some(1, 3, 16), some(1, 3, 16), None, None,
         np.array([2], np.int32), np.array(3, np.int32)],
        3, {"num_heads": 4, "kv_num_heads": 2, "causal": 0}),
    "grouped, shared cache": (
        "GroupQueryAttention",
        [some(1, 2, 32), some(1, 0, 16), some(1, 0, 16), some(1, 2, 5, 8), some(1, 2, 5, 8),
         np.array([3], np.int32), np.array(4, np.int32), None, None, None, None,
         np.full(4, -np.inf, np.float32)],
        1, {"num_heads": 4, "kv_num_heads": 2}),
    "packed weights": (
        "Attention", [some(1, 3, 8), some(8, 24), some(24)], 1,
        {"num_heads": 2, "unidirectional": 1}),
    "packed weights, mask": (
        "Attention", [some(1, 3, 8), some(8, 24), some(24), np.array([[1, 1, 0]], np.int32)], 1,
        {"num_heads": 2}),
    "rotary": (
        "RotaryEmbedding",
        [some(1, 2, 3, 8), np.array([[0, 1, 2]]), some(9, 4), some(9, 4)], 1, {}),
    "skip norm": (
        "SkipLayerNormalization", [some(1, 3, 4), some(1, 3, 4), some(4), some(4)], 1, {}),
    "skip norm, sum": (
        "SkipSimplifiedLayerNormalization", [some(1, 3, 4), some(1, 3, 4), some(4)], 4, {}),
    "fused product": (
        "FusedMatMul", [some(2, 4, 3), some(2, 4, 5)], 1, {"transA": 1, "alpha": 0.5}),
    "bias gelu": ("BiasGelu", [some(3, 4), some(4)], 1, {}),
    "fast gelu": ("FastGelu", [some(3, 4), some(4)], 1, {}),
    "quick gelu": ("QuickGelu", [some(3, 4)], 1, {}),
    "n bits": (
        "MatMulNBits", [some(2, 3, 16), quantized(8, 1, 8), some(8, 1)], 1,
        {"K": 16, "N": 8, "bits": 4, "block_size": 16}),
    "dynamic quantized product": (
        "DynamicQuantizeMatMul", [some(3, 4), quantized(4, 5), some(5)], 1, {}),
    "quantized sum": (
        "QLinearAdd",
        [quantized(3, 4), scalar(0.1), ZERO, quantized(3, 4), scalar(0.2), ZERO, scalar(0.3),
         ZERO], 1, {}),
}  # fmt: skip


def model_of(name: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    op, inputs, outputs, attributes = NODES[name]
    feeds = {f"x{at}": item for at, item in enumerate(inputs) if item is not None}
    names = [f"x{at}" if item is not None else "" for at, item in enumerate(inputs)]
    results = [f"y{at}" for at in range(outputs)]
    if op == "SkipSimplifiedLayerNormalization":
        results = ["y0", "", "", "y3"]
    node = helper.make_node(op, names, results, domain=MICROSOFT, **attributes)
    infos = [
        helper.make_tensor_value_info(
            key, helper.np_dtype_to_tensor_dtype(item.dtype), list(item.shape)
        )
        for key, item in feeds.items()
    ]
    kind = onnx.TensorProto.UINT8 if op == "QLinearAdd" else onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(key, kind, None) for key in results if key]
    graph = helper.make_graph([node], "g", infos, ends)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


@pytest.mark.parametrize("name", NODES)
def test_no_dependence_is_missed(name: str) -> None:
    model, feeds = model_of(name)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    program = read_program(model, None)
    before = session.run(None, feeds)
    checked = 0
    for key, array in feeds.items():
        if array.dtype not in (np.float32, np.uint8) or not array.shape:
            continue
        # Masks of -1e4 hide here: the scores are small.
        mode = Mode(positions=array.size, threshold=5e3)
        values: dict[str, Any] = {n: constant(a, mode.words) for n, a in feeds.items()}
        values[key] = unknown(array.shape, array.dtype, positions_of(array.shape, mode.words))
        outputs = Frame(program, mode, values=values, dims={}).run(program.graph)
        assert not mode.doubts
        for element in RANDOM.permutation(array.size)[:12]:
            moved = array.copy()
            moved.reshape(-1)[element] += 3 if array.dtype == np.uint8 else RANDOM.normal()
            after = session.run(None, {**feeds, key: moved})
            for output, a, b in zip(outputs, before, after, strict=True):
                assert isinstance(output, Tensor)
                assert output.shape == a.shape
                changed = (a != b).reshape(-1)
                inside = reached(output, array.size)[:, element]
                assert not (changed & ~inside).any(), f"{key}[{element}] is missed"
        checked += 1
    assert checked
