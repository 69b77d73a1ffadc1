"""What is known of values decides what is hidden: masks of every kind, and what undoes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, allowed, single
from onnx import TensorProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, ones, prove

LOWER = np.tri(6, dtype=bool)


def attention(mask: Callable[[Builder, str, str], str], **options: Any) -> Proof:
    """Self-attention of one head; `mask` turns scores and what is allowed into masked scores."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    weights = mask(b, scores, allowed(b, x))
    if options.pop("softmax", True):
        weights = b("Softmax", weights, axis=-1)
    model = b.model({"y": b("MatMul", weights, x)}, None)
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 6], **options))


def filled(fill: float) -> Callable[[Builder, str, str], str]:
    return lambda b, scores, seen: b("Where", seen, scores, b.const(fill, np.float32))


def added(fill: float) -> Callable[[Builder, str, str], str]:
    def mask(b: Builder, scores: str, seen: str) -> str:
        bias = b("Where", seen, b.const(0.0, np.float32), b.const(fill, np.float32))
        return b("Add", scores, bias)

    return mask


def test_replaced_scores_have_twice_the_bound_of_added_ones() -> None:
    replaced, plus = attention(filled(-1e4)), attention(added(-1e4))
    assert replaced.verdict is plus.verdict is Verdict.CONDITIONAL
    assert replaced.score_bound == pytest.approx(1e4 - 104)
    assert plus.score_bound == pytest.approx((1e4 - 104) / 2)


def test_smallest_bound_of_several_is_reported() -> None:
    def both(b: Builder, scores: str, seen: str) -> str:
        column = b("Where", seen, b.const(0.0, np.float32), b.const(-1e4, np.float32))
        places = b("Where", b.const([[True, False]]), b.const(-1e4, np.float32),
                   b.const(-2e4, np.float32))  # fmt: skip
        first = b("Slice", scores, b.const([0], np.int64), b.const([1], np.int64),
                  b.const([2], np.int64))  # fmt: skip
        rest = b("Slice", b("Add", scores, column), b.const([1], np.int64),
                 b.const([99], np.int64), b.const([2], np.int64))  # fmt: skip
        return b("Add", b("Concat", first, rest, axis=2), b("ReduceMax", places, keepdims=1))

    assert attention(both).score_bound == pytest.approx((1e4 - 104) / 2)


def test_double_precision_underflows_later() -> None:
    mask = np.where(LOWER, 0.0, -1e4)
    b = Builder()
    x = b.input("x", ["b", 6, 4], TensorProto.DOUBLE)
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    weights = b("Softmax", b("Add", scores, b.const(mask)), axis=-1)
    model = b.model({"y": b("MatMul", weights, x)}, None)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}))
    assert proof.score_bound == pytest.approx((1e4 - 746) / 2)


@pytest.mark.parametrize(
    ("name", "mask", "verdict"),
    [
        ("-inf added", added(-np.inf), Verdict.CAUSAL),
        ("-inf filled in", filled(-np.inf), Verdict.CAUSAL),
        (
            "a scale after the mask",
            lambda b, s, m: b("Mul", added(-np.inf)(b, s, m), b.const(0.5, np.float32)),
            Verdict.CAUSAL,
        ),
        (
            "a cap before the mask",
            lambda b, s, m: added(-np.inf)(b, b("Tanh", s), m),
            Verdict.CAUSAL,
        ),
        # Trap 21: capped after the mask, -inf becomes -1 and hides nothing.
        (
            "a cap after the mask",
            lambda b, s, m: b("Tanh", added(-np.inf)(b, s, m)),
            Verdict.NOT_CAUSAL,
        ),
        (
            "scores multiplied by 0 and 1",
            lambda b, s, m: b("Mul", s, b("Cast", m, to=TensorProto.FLOAT)),
            Verdict.NOT_CAUSAL,
        ),
        # Trap 6: an integer mask is added to the scores.
        (
            "0 and 1 added to the scores",
            lambda b, s, m: b("Add", s, b("Cast", m, to=TensorProto.FLOAT)),
            Verdict.NOT_CAUSAL,
        ),
        (
            "twice the lowest float, which is -inf",
            lambda b, s, m: added(-3e38)(b, added(-3e38)(b, s, m), m),
            Verdict.CONDITIONAL,
        ),
        (
            "a column that every query sees",
            lambda b, s, m: b("Concat", added(-np.inf)(b, s, m), axis=-1),
            Verdict.CAUSAL,
        ),
    ],
)
def test_masks(name: str, mask: Callable[[Builder, str, str], str], verdict: Verdict) -> None:
    proof = attention(mask)
    assert proof.verdict is verdict, f"{name}: {proof}"
    if verdict is not Verdict.NOT_CAUSAL:
        assert np.array_equal(proof.outputs["y"], LOWER)


def test_weights_multiplied_by_the_mask_still_sum_over_the_future() -> None:
    def mask(b: Builder, scores: str, seen: str) -> str:
        weights = b("Softmax", scores, axis=-1)
        kept = b("Mul", weights, b("Cast", seen, to=TensorProto.FLOAT))
        return b("Div", kept, b("ReduceSum", kept, b.const([2], np.int64)))

    assert attention(mask, softmax=False).verdict is Verdict.NOT_CAUSAL


def test_linear_attention_is_causal() -> None:
    def mask(b: Builder, scores: str, seen: str) -> str:
        return b("Mul", b("Relu", scores), b("Cast", seen, to=TensorProto.FLOAT))

    assert attention(mask, softmax=False).verdict is Verdict.CAUSAL


def test_lower_triangle_of_scores_hides_the_rest() -> None:
    def mask(b: Builder, scores: str, seen: str) -> str:
        return b("Trilu", b("Exp", scores), upper=0)

    assert attention(mask, softmax=False).verdict is Verdict.CAUSAL


def test_rows_without_a_key_are_nan_and_may_be_cleaned() -> None:
    """The first row sees no key: NaN by the formula of softmax, and then 0."""

    def mask(b: Builder, scores: str, seen: str) -> str:
        strict = b("And", seen, b("Not", b("Transpose", seen, perm=[1, 0])))
        weights = b("Softmax", filled(-np.inf)(b, scores, strict), axis=-1)
        return b("Where", b("IsNaN", weights), b.const(0.0, np.float32), weights)

    proof = attention(mask, softmax=False)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    # The query of a row is in its scores, except in the row that has none.
    reached = LOWER.copy()
    reached[0] = False
    assert np.array_equal(proof.outputs["y"], reached)


def padded(fill: float, **options: Any) -> Proof:
    """Causal and padding masks as the ecosystem joins them, the padding from an input."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    padding = b.input("attention_mask", ["b", "tokens"], TensorProto.INT64)
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    real = b("Unsqueeze", b("Cast", padding, to=TensorProto.BOOL), b.const([1], np.int64))
    seen = b("And", allowed(b, x), real)
    weights = b("Softmax", added(fill)(b, scores, seen), axis=-1)
    model = b.model({"y": b("MatMul", weights, x)}, None)
    axes = {"x": 1, "attention_mask": 1}
    return prove(model, Claim(tokens=axes, outputs={"y": 1}, lengths=[1, 6], **options))


def test_padding_that_is_data() -> None:
    proof = padded(-np.inf)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    # Under a finite mask a row of nothing but padding sees everything, the future too.
    assert padded(-1e4).verdict is Verdict.NOT_CAUSAL
    assert padded(-1e4, known={"attention_mask": ones}).verdict is Verdict.CONDITIONAL


def matrix_of(b: Builder, y: str, length: int = 4, axis: int = 1) -> Any:
    model = b.model({"y": y}, None)
    return prove(model, Claim(tokens={"x": axis}, outputs={"y": axis}, lengths=[length])).outputs[
        "y"
    ]


def test_condition_that_is_data_reaches_the_result() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    first = b("Slice", x, *(b.const([at], np.int64) for at in (0, 1, 1)))
    positive = b("Greater", first, b.const(0.0, np.float32))
    y = b("Where", positive, b.const(np.ones((1, 4, 1)), np.float32), b.const(0.0, np.float32))
    matrix = matrix_of(b, y)
    assert matrix[:, 0].all()
    assert not matrix[:, 1:].any()


def test_known_zero_carries_nothing() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    y = b("Mul", x, b.const(np.array([1, 0, 1, 0]).reshape(4, 1), np.float32))
    assert np.array_equal(matrix_of(b, y), np.diag([True, False, True, False]))
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    some = b("Mul", x, b.const(np.array([1, 0, 0, 0]).reshape(4, 1), np.float32))
    total = b("ReduceSum", some, b.const([1], np.int64))
    y = b("Add", total, b.const(np.zeros((4, 1)), np.float32))
    assert np.array_equal(matrix_of(b, y), np.array([[True, False, False, False]] * 4))


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sum(exclusive: int, reverse: int) -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    y = b("CumSum", x, b.const(1, np.int64), exclusive=exclusive, reverse=reverse)
    expected = np.tri(4, k=-exclusive, dtype=bool)
    assert np.array_equal(matrix_of(b, y), expected.T if reverse else expected)


def test_zeros_of_a_large_stored_matrix_are_seen() -> None:
    b = Builder()
    x = b.input("x", ["b", 40, 4])
    weight = np.random.default_rng(0).normal(size=(40, 40)) * np.tri(40)
    matrix = matrix_of(b, b("MatMul", b.const(weight, np.float32), x), 40)
    assert np.array_equal(matrix, np.tri(40, dtype=bool))


def test_path_follows_the_element_that_arrives() -> None:
    """The last token is in two rows of the joined tensor; only one of them is read."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    ends = (b.const([value], np.int64) for value in (-1, -99, 1, -1))
    joined = b("Concat", x, b("Slice", x, *ends), axis=1)
    y = b("Slice", joined, *(b.const([at], np.int64) for at in (4, 8, 1)))
    proof = prove(b.model({"y": y}, None), Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[4]))
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.leak is not None
    assert (proof.leak.query, proof.leak.position) == (0, 3)
    assert proof.leak.path[0] == "x[0, 3, 0]"
    assert f"Concat {joined!r} -> {joined}[0, 4, 0]" in proof.leak.path


@pytest.mark.parametrize(
    ("op", "options", "expected"),
    [
        ("Softmax", {"axis": 1}, np.ones((4, 4), bool)),
        ("Softmax", {"axis": -1}, np.eye(4, dtype=bool)),
        ("LogSoftmax", {"axis": 1}, np.ones((4, 4), bool)),
        ("LpNormalization", {"axis": 1}, np.ones((4, 4), bool)),
        ("InstanceNormalization", {"consts": [np.ones(4, np.float32)] * 2}, np.eye(4, dtype=bool)),
    ],
)
def test_axes_that_join(op: str, options: dict[str, Any], expected: Any) -> None:
    model = single(op, ["b", 4, 4], **options)
    proof = prove(model, Claim(tokens={"x0": 1}, outputs={"y": 1}, lengths=[4]))
    assert np.array_equal(proof.outputs["y"], expected)
