"""How large scores can be: the bounds hold on numbers, and decide about finite masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, allowed, decoder
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove
from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.feed import Axes, feed
from causal_attn.verify.influence.program import read_program
from causal_attn.verify.influence.registry import Mode
from causal_attn.verify.influence.tensor import SMALLEST_OFFSET, Tensor

FLOAT = np.float32
LOWEST = float(np.finfo(FLOAT).min)
TOKENS, WIDTH = 5, 8


def proof_of(fill: float, gain: float = 1.0, norm: str = "LayerNormalization") -> Proof:
    """Attention over a normalized float input: only the norm bounds its scores."""
    b = Builder()
    x = b.input("x", ["b", "tokens", WIDTH])
    row = NORMS[norm](b, x, gain)
    scores = b("MatMul", row, b("Transpose", row, perm=[0, 2, 1]))
    bias = b("Where", allowed(b, x), b.const(0.0, FLOAT), b.const(fill, FLOAT))
    weights = b("Softmax", b("Add", scores, bias), axis=-1)
    model = b.model({"y": b("MatMul", weights, x)}, None)
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 6]))


def gains(b: Builder, gain: float) -> str:
    return b.const(np.full(WIDTH, gain), FLOAT)


def squares(b: Builder, x: str) -> str:
    mean = b("ReduceMean", b("Pow", x, b.const(2.0, FLOAT)), b.const([-1]))
    return b("Add", mean, b.const(1e-6, FLOAT))


def by_reciprocal(b: Builder, x: str, gain: float) -> str:
    root = b("Sqrt", squares(b, x))
    return b("Mul", gains(b, gain), b("Mul", x, b("Reciprocal", root)))


def by_quotient(b: Builder, x: str, gain: float) -> str:
    centred = b("Sub", x, b("ReduceMean", x, b.const([-1])))
    return b("Mul", b("Div", centred, b("Sqrt", squares(b, centred))), gains(b, gain))


def by_power(b: Builder, x: str, gain: float) -> str:
    return b("Mul", b("Mul", x, b("Pow", squares(b, x), b.const(-0.5, FLOAT))), gains(b, gain))


def of_another(b: Builder, x: str, gain: float) -> str:
    """Divided by the root of something else: no norm at all."""
    root = b("Sqrt", squares(b, b("Tanh", x)))
    return b("Mul", b("Div", x, root), gains(b, gain))


NORMS: dict[str, Callable[[Builder, str, float], str]] = {
    "LayerNormalization": lambda b, x, gain: b("LayerNormalization", x, gains(b, gain)),
    "x * (1 / root)": by_reciprocal,
    "x / root": by_quotient,
    "x * power": by_power,
    "none": of_another,
}


@pytest.mark.parametrize("norm", [name for name in NORMS if name != "none"])
def test_norm_bounds_scores_of_any_input(norm: str) -> None:
    proof = proof_of(LOWEST, norm=norm)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    # Rows of 8 features are at most the root of 8 long, so scores at most 8.
    assert proof.largest_score == pytest.approx(WIDTH, rel=1e-5)
    assert proof.score_bound == pytest.approx(-LOWEST / 2)
    assert "|score| <= 8" in str(proof)


def test_what_is_not_normalized_has_no_bound() -> None:
    proof = proof_of(LOWEST, norm="none")
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.largest_score is None


@pytest.mark.parametrize("fill", [-1e4, -65504.0, -1e9])
def test_bound_just_under_and_just_over_the_mask(fill: float) -> None:
    needed = (-fill - 104) / 2
    under, over = np.sqrt(needed / WIDTH / 1.2), np.sqrt(needed / WIDTH * 1.01)
    assert proof_of(fill, under).verdict is Verdict.CAUSAL
    assert proof_of(fill, over).verdict is Verdict.CONDITIONAL


def test_decoder_with_weights_in_another_file(tmp_path: Path) -> None:
    model = decoder(fill=-1e10, weights="w")
    size = max(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    values = np.random.default_rng(0).normal(size=size).astype(FLOAT)
    values.tofile(tmp_path / "w")
    claim = Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=[4])
    proof = prove(model, claim, base_dir=tmp_path)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    (values * 1e3).tofile(tmp_path / "w")
    assert prove(model, claim, base_dir=tmp_path).verdict is Verdict.CONDITIONAL


def cached(normalized: bool) -> ModelProto:
    """One head whose keys are kept; where they are not normalized nothing bounds them."""
    b = Builder()
    x = b.input("x", ["b", "tokens", WIDTH])
    past = b.input("past", ["b", "past", WIDTH])
    row = b("LayerNormalization", x, gains(b, 1.0))
    keys = b("Concat", past, row if normalized else x, axis=1)
    scores = b("MatMul", row, b("Transpose", keys, perm=[0, 2, 1]))
    one, zero = b.const(1, np.int64), b.const(0, np.int64)
    total = b("Gather", b("Shape", keys), one, axis=0)
    tokens = b("Gather", b("Shape", x), one, axis=0)
    columns = b("Unsqueeze", b("Range", zero, total, one), b.const([0]))
    places = b("Add", b("Range", zero, tokens, one), b("Sub", total, tokens))
    seen = b("LessOrEqual", columns, b("Unsqueeze", places, b.const([1])))
    bias = b("Where", seen, b.const(0.0, FLOAT), b.const(-1e9, FLOAT))
    weights = b("Softmax", b("Add", scores, bias), axis=-1)
    return b.model({"y": b("MatMul", weights, keys), "present": keys}, None)


def test_past_is_as_large_as_what_the_graph_hands_on() -> None:
    claim = Claim(tokens={"x": 1}, past={"past": 1}, outputs={"y": 1}, lengths=[3], pasts=(0, 4))
    proof = prove(cached(normalized=True), claim)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.largest_score == pytest.approx(WIDTH, rel=1e-5)
    assert prove(cached(normalized=False), claim).verdict is Verdict.CONDITIONAL


def measured(model: ModelProto, name: str, rank_axis: int = 1) -> Frame:
    """The graph with extents followed, at `TOKENS` tokens."""
    program = read_program(model, None)
    mode = Mode(positions=TOKENS, measured=True)
    values = feed(program.graph, Axes({name: rank_axis}), TOKENS, 0, {"b": 2}, {}, mode)
    frame = Frame(program, mode, values=values, dims={})
    frame.run(program.graph)
    return frame


def check_on_numbers(model: ModelProto, feeds: dict[str, Any], finite: int = 1) -> None:
    """No intermediate value is outside of its extent, and some extents are bounds at all."""
    (name,) = feeds
    frame = measured(model, name)
    everything = ModelProto()
    everything.CopyFrom(model)
    names = [out for node in model.graph.node for out in node.output if out]
    del everything.graph.output[:]
    everything.graph.output.extend(helper.make_empty_tensor_value_info(out) for out in names)
    results: Any = ReferenceEvaluator(everything).run(None, feeds)
    bounded = 0
    for out, array in zip(names, results, strict=True):
        tensor, extent = frame.values[out], frame.extent(out)
        if not isinstance(tensor, Tensor) or array.dtype.kind != "f" or tensor.known.all():
            continue
        data = np.where(np.broadcast_to(tensor.known, array.shape), 0.0, array.astype(np.float64))
        if tensor.low.any():
            large = np.abs(tensor.low.astype(np.float64)) >= SMALLEST_OFFSET
            data = np.where(np.broadcast_to(large, array.shape), 0.0, data)
        slack = 1e-5 * max(1.0, float(np.abs(data).max()))
        assert extent.low - slack <= data.min(), out
        assert data.max() <= extent.high + slack, out
        axes = tuple(extent.axes)
        if axes and not tensor.low.any():
            longest = float(np.sqrt(np.square(data).sum(axes)).max())
            assert longest <= extent.norm * (1 + 1e-5), out
        bounded += bool(np.isfinite(extent.size))
    assert bounded >= finite


def test_no_value_of_a_decoder_is_outside() -> None:
    model = decoder(fill=-1e4)
    ids = np.random.default_rng(0).integers(0, 50, (2, TOKENS))
    check_on_numbers(model, {"input_ids": ids}, finite=40)


def rotated(b: Builder, x: str) -> str:
    halves = [b("Slice", x, b.const([at]), b.const([at + 4]), b.const([2])) for at in (0, 4)]
    turned = b("Concat", b("Neg", halves[1]), halves[0], axis=-1)
    angle = b("Mul", x, b.const(3.0, FLOAT))
    return b("Add", b("Mul", x, b("Cos", angle)), b("Mul", turned, b("Sin", angle)))


def heads(b: Builder, x: str) -> str:
    split = b("Reshape", x, b.const([0, 0, 2, 4]))
    moved = b("Transpose", split, perm=[0, 2, 1, 3])
    scores = b("MatMul", moved, b("Transpose", moved, perm=[0, 1, 3, 2]))
    mixed = b("MatMul", b("Softmax", scores, axis=-1), moved)
    return b("Reshape", b("Transpose", mixed, perm=[0, 2, 1, 3]), b.const([0, 0, 8]))


BLOCKS: dict[str, Callable[[Builder, str], str]] = {
    "rotation": rotated,
    "heads": heads,
    "gelu": lambda b, x: b("Gelu", b("MatMul", x, b.weight(WIDTH, 12))),
    "gated": lambda b, x: b("Mul", b("Sigmoid", x), b("MatMul", x, b.weight(WIDTH, WIDTH))),
    "gemm": lambda b, x: b(
        "Gemm", b("Reshape", x, b.const([-1, WIDTH])), b.weight(4, WIDTH), b.weight(4), transB=1
    ),
    "sums": lambda b, x: b("CumSum", b("ReduceSum", x, b.const([2])), b.const(1, np.int64)),
    "exponential": lambda b, x: b("Div", b("Exp", x), b("Add", b("Exp", x), b.const(1.0, FLOAT))),
    "powers": lambda b, x: b("Sub", b("Pow", x, b.const(3.0, FLOAT)), b("Mul", x, x)),
    "clip": lambda b, x: b("Clip", x, b.const(-0.5, FLOAT), b.const(0.25, FLOAT)),
    "choice": lambda b, x: b("Where", b("Greater", x, b.const(0.0, FLOAT)), x, b("Tanh", x)),
    "convolution": lambda b, x: b(
        "Conv", b("Transpose", x, perm=[0, 2, 1]), b.weight(WIDTH, 1, 3), group=WIDTH, pads=[2, 0]
    ),
    "wide": lambda b, x: b("Expand", b("Unsqueeze", x, b.const([2])), b.const([1, 1, 3, 1])),
    "einsum": lambda b, x: b("Einsum", x, b.weight(WIDTH, 3), equation="btc,cd->btd"),
    "softmax by hand": lambda b, x: b(
        "Exp", b("Sub", x, b("ReduceMax", x, b.const([2]), keepdims=1))
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_no_value_of_a_block_is_outside(name: str, scale: float) -> None:
    b = Builder(20)
    x = b.input("x", ["b", "tokens", WIDTH])
    row = b("LayerNormalization", x, b.weight(WIDTH), b.weight(WIDTH))
    model = b.model({"y": BLOCKS[name](b, row)}, None)
    array = np.random.default_rng(1).normal(size=(2, TOKENS, WIDTH)) * scale
    check_on_numbers(model, {"x": array.astype(FLOAT)})


def test_attention_of_the_standard_is_bounded() -> None:
    """Opset 23 on a CPU adds the lowest float; normalized queries and keys cannot reach it."""
    b = Builder(23)
    x = b.input("x", ["b", "tokens", WIDTH])
    row = b("LayerNormalization", x, gains(b, 2.0))
    y = b("Attention", row, row, x, is_causal=1, q_num_heads=2, kv_num_heads=2)
    model = b.model({"y": y}, None)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 5]))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.largest_score == pytest.approx(4 * WIDTH / 2, rel=1e-5)


def test_a_loop_carries_no_bound() -> None:
    """A body may double what it carries; nothing is said of it."""
    b = Builder()
    x = b.input("x", ["b", "tokens", WIDTH])
    row = b("LayerNormalization", x, gains(b, 1.0))
    infos = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in (("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("s", 1))
    ]
    body = [
        helper.make_node("Identity", ["c"], ["go"]),
        helper.make_node("Add", ["s", "s"], ["r"]),
    ]
    outs = [helper.make_tensor_value_info(n, k, None) for n, k in (("go", 9), ("r", 1))]
    graph = helper.make_graph(body, "body", infos, outs)
    grown = b("Loop", b.const(3, np.int64), b.const(True), row, body=graph)
    frame = measured(b.model({"y": grown}, None), "x")
    assert np.isinf(frame.extent(grown).size)
