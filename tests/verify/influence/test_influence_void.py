"""Weights that are zero or NaN: they show what decides between the two, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from influence_graphs import Builder, allowed
from onnx import TensorProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT = np.float32
LOWER = np.tri(6, dtype=bool)
Weights = Callable[[Builder, str], str]


def attention(weigh: Weights) -> Proof:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    model = b.model({"y": b("MatMul", weigh(b, scores), x)}, None)
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 6]))


def triangle(b: Builder, scores: str) -> str:
    return b("Trilu", b("Exp", scores), upper=0)


def divided(b: Builder, kept: str, by: str) -> str:
    return b("Div", kept, b("ReduceSum", by, b.const([2])))


def test_triangle_divided_by_its_row_sum() -> None:
    def weigh(b: Builder, scores: str) -> str:
        kept = triangle(b, scores)
        return divided(b, kept, kept)

    proof = attention(weigh)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], LOWER)


@pytest.mark.parametrize(
    "move",
    [
        lambda b, w: b("Cast", w, to=TensorProto.FLOAT16),
        lambda b, w: b("Transpose", b("Transpose", w, perm=[0, 2, 1]), perm=[0, 2, 1]),
        lambda b, w: b("Mul", w, b.const(2.0, FLOAT)),
        lambda b, w: b("Where", b("IsNaN", w), b.const(0.0, FLOAT), w),
        lambda b, w: b("Slice", b("Concat", w, w, axis=0), b.const([0]), b.const([1])),
    ],
)
def test_what_becomes_of_such_weights(move: Callable[[Builder, str], str]) -> None:
    def weigh(b: Builder, scores: str) -> str:
        kept = triangle(b, scores)
        moved = move(b, divided(b, kept, kept))
        return b("Cast", moved, to=TensorProto.FLOAT)

    proof = attention(weigh)
    assert proof.verdict is Verdict.CAUSAL, str(proof)


def test_triangle_divided_by_the_sum_of_all() -> None:
    proof = attention(lambda b, s: divided(b, triangle(b, s), b("Exp", b("Relu", s))))
    assert proof.verdict is Verdict.NOT_CAUSAL


def test_one_by_such_a_weight_has_the_sign_of_what_was_dropped() -> None:
    def weigh(b: Builder, scores: str) -> str:
        kept = triangle(b, scores)
        signed = b("Mul", divided(b, kept, kept), scores)
        return b("Reciprocal", signed)

    assert attention(weigh).verdict is not Verdict.CAUSAL


def recurrence(where: Weights) -> Proof:
    """``0 * sqrt(x)`` at the first token, as a gate that opens where positions restart."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    root = b("Sqrt", where(b, x))
    length = b("Gather", b("Shape", x), b.const(1, np.int64), axis=0)
    places = b("Range", b.const(0, np.int64), length, b.const(1, np.int64))
    later = b("Cast", b("Greater", places, b.const(0, np.int64)), to=TensorProto.FLOAT)
    gate = b("Mul", b("Unsqueeze", later, b.const([1])), root)
    y = b("CumSum", b("Mul", gate, x), b.const(1, np.int64))
    return prove(b.model({"y": y}, None), Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 6]))


def test_zero_times_a_root_shows_its_own_token_alone() -> None:
    proof = recurrence(lambda b, x: b("Sub", b.const(1.0, FLOAT), b("Mul", x, x)))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], LOWER)


def test_zero_times_a_root_of_the_mean_shows_all() -> None:
    proof = recurrence(lambda b, x: b("Add", x, b("ReduceMean", x, b.const([1]))))
    assert proof.verdict is Verdict.NOT_CAUSAL


def test_causal_mask_as_weight_in_another_product() -> None:
    """Linear attention: the triangle multiplies, a running sum divides."""

    def weigh(b: Builder, scores: str) -> str:
        seen = b("Cast", allowed(b, scores), to=TensorProto.FLOAT)
        kept = b("Mul", b("Relu", scores), seen)
        return divided(b, kept, kept)

    proof = attention(weigh)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
