"""Masks that are partly data: what is hidden by position alone stays hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, allowed
from onnx import TensorProto, helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT = np.float32
LOWEST = float(np.finfo(FLOAT).min)
LOWER = np.tri(6, dtype=bool)
Weights = Callable[[Builder, str, str, str], str]
"""``(builder, ids, scores, allowed) -> weights``."""


def attention(weigh: Weights, *, opset: int = 18) -> Proof:
    """Self-attention of one head over embedded ids."""
    b = Builder(opset)
    ids = b.input("ids", ["b", "tokens"], TensorProto.INT64)
    x = b("Gather", b.weight(20, 4), ids)
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    y = b("MatMul", weigh(b, ids, scores, allowed(b, ids)), x)
    model = b.model({"y": y}, None)
    return prove(model, Claim(tokens={"ids": 1}, outputs={"y": 1}, lengths=[1, 6]))


def masked(b: Builder, scores: str, seen: str, fill: float = -np.inf) -> str:
    return b("Where", seen, scores, b.const(fill, FLOAT))


def softmax(b: Builder, scores: str) -> str:
    return b("Softmax", scores, axis=-1)


def added(b: Builder, scores: str, seen: str, fill: float = LOWEST) -> str:
    return b("Add", scores, b("Where", seen, b.const(0.0, FLOAT), b.const(fill, FLOAT)))


def in_float64(b: Builder, ids: str, scores: str, seen: str) -> str:
    wide = b("Cast", added(b, scores, seen, -np.inf), to=TensorProto.DOUBLE)
    return b("Cast", softmax(b, wide), to=TensorProto.FLOAT)


def positions_in_float64(b: Builder, ids: str, scores: str, seen: str) -> str:
    length = b("Gather", b("Shape", ids), b.const(1, np.int64), axis=0)
    places = b("Range", b.const(0, np.int64), length, b.const(1, np.int64))
    places = b("Cast", places, to=TensorProto.DOUBLE)
    rows = b("Unsqueeze", places, b.const([1], np.int64))
    return softmax(b, masked(b, scores, b("LessOrEqual", places, rows)))


def same_document(b: Builder, ids: str, scores: str, seen: str) -> str:
    """A separator starts a document; a query sees keys of its own."""
    separator = b("Cast", b("Equal", ids, b.const(0, np.int64)), to=TensorProto.INT64)
    number = b("CumSum", separator, b.const(1, np.int64))
    query = b("Unsqueeze", number, b.const([2], np.int64))
    key = b("Unsqueeze", number, b.const([1], np.int64))
    return softmax(b, masked(b, scores, b("And", seen, b("Equal", query, key))))


def padding_of_ids(b: Builder, ids: str, scores: str, seen: str) -> str:
    real = b("Not", b("Equal", ids, b.const(0, np.int64)))
    return softmax(b, masked(b, scores, b("And", seen, b("Unsqueeze", real, b.const([1])))))


def as_product(b: Builder, ids: str, scores: str, seen: str) -> str:
    """Masks of 0 and 1 that are multiplied."""
    real = b("Not", b("Equal", ids, b.const(0, np.int64)))
    real = b("Unsqueeze", b("Cast", real, to=TensorProto.FLOAT), b.const([1]))
    both = b("Mul", b("Cast", seen, to=TensorProto.FLOAT), real)
    closed = b("Equal", both, b.const(0.0, FLOAT))
    return softmax(b, b("Where", closed, b.const(-np.inf, FLOAT), scores))


def as_minimum(b: Builder, ids: str, scores: str, seen: str) -> str:
    """Masks of 0 and 1 of which the smaller counts."""
    real = b("Not", b("Equal", ids, b.const(0, np.int64)))
    real = b("Unsqueeze", b("Cast", real, to=TensorProto.INT64), b.const([1]))
    both = b("Min", b("Cast", seen, to=TensorProto.INT64), real)
    return softmax(b, masked(b, scores, b("Cast", both, to=TensorProto.BOOL)))


def as_added_masks(b: Builder, ids: str, scores: str, seen: str) -> str:
    real = b("Not", b("Equal", ids, b.const(0, np.int64)))
    padding = b("Where", b("Unsqueeze", real, b.const([1])), b.const(0.0, FLOAT),
                b.const(-np.inf, FLOAT))  # fmt: skip
    causal = b("Where", seen, b.const(0.0, FLOAT), b.const(-np.inf, FLOAT))
    return softmax(b, b("Add", scores, b("Min", causal, padding)))


def largest_scores(b: Builder, ids: str, scores: str, seen: str) -> str:
    """Each query keeps the two largest of the scores it may see."""
    scores = masked(b, scores, seen)
    padded = b("Pad", scores, b.const([0, 0, 0, 0, 0, 2]), b.const(-np.inf, FLOAT))
    top = b("TopK", padded, b.const([2]), axis=-1, outputs=2)
    least = b("ReduceMin", top, b.const([2]), keepdims=1)
    kept = b("GreaterOrEqual", scores, least)
    return softmax(b, masked(b, scores, b("And", seen, kept)))


CAUSAL: dict[str, Weights] = {
    "softmax in float64": in_float64,
    "positions in float64": positions_in_float64,
    "documents": same_document,
    "padding of ids": padding_of_ids,
    "product of masks": as_product,
    "minimum of masks": as_minimum,
    "masks added": as_added_masks,
    "top-k": largest_scores,
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_whatever_the_data_is(name: str) -> None:
    proof = attention(CAUSAL[name])
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert not (proof.outputs["y"] & ~LOWER).any()


def documents(number: Callable[[Builder, str], str], fill: float = LOWEST) -> Weights:
    """Keys of the query's own document, under a finite mask; `number` tells documents apart."""

    def weigh(b: Builder, ids: str, scores: str, seen: str) -> str:
        numbers = number(b, ids)
        query = b("Unsqueeze", numbers, b.const([2], np.int64))
        key = b("Unsqueeze", numbers, b.const([1], np.int64))
        return softmax(b, added(b, scores, b("And", seen, b("Equal", query, key)), fill))

    return weigh


def count(b: Builder, ids: str) -> str:
    separator = b("Cast", b("Equal", ids, b.const(0, np.int64)), to=TensorProto.INT64)
    return b("CumSum", separator, b.const(1, np.int64))


def next_count(b: Builder, ids: str) -> str:
    """The number of the next token: the future decides."""
    ends = (b.const([value]) for value in (1, 99, 1))
    return b("Pad", b("Slice", count(b, ids), *ends), b.const([0, 0, 0, 1]))


def test_a_document_contains_its_own_token() -> None:
    """Every row sees itself whatever the data is, so no row falls back to seeing everything."""
    proof = attention(documents(count))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.score_bound == pytest.approx(-LOWEST / 2)
    assert not (proof.outputs["y"] & ~LOWER).any()
    assert attention(documents(next_count)).verdict is Verdict.NOT_CAUSAL


def shifted_documents(b: Builder, ids: str, scores: str, seen: str) -> str:
    """Query numbers are those of the token before: nothing says that a row sees itself."""
    numbers = count(b, ids)
    before = b("Pad", numbers, b.const([0, 1, 0, -1]))
    query = b("Unsqueeze", before, b.const([2], np.int64))
    key = b("Unsqueeze", numbers, b.const([1], np.int64))
    return softmax(b, added(b, scores, b("And", seen, b("Equal", query, key))))


def test_numbers_of_another_token_are_not_equal() -> None:
    assert attention(shifted_documents).verdict is Verdict.NOT_CAUSAL


def clamped(op: str) -> Weights:
    def weigh(b: Builder, ids: str, scores: str, seen: str) -> str:
        scores = added(b, scores, seen)
        if op == "Clip":
            return softmax(b, b("Clip", scores, b.const(LOWEST, FLOAT), b.const(-LOWEST, FLOAT)))
        return softmax(b, b(op, scores, b.const(LOWEST if op == "Max" else -LOWEST, FLOAT)))

    return weigh


@pytest.mark.parametrize("op", ["Max", "Min", "Clip"])
def test_clamped_at_the_lowest_float(op: str) -> None:
    proof = attention(clamped(op))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.score_bound == pytest.approx(-LOWEST / 2)
    assert np.array_equal(proof.outputs["y"], LOWER)


@pytest.mark.parametrize(("op", "limit"), [("Max", -50.0), ("Clip", -50.0), ("Min", -5000.0)])
def test_clamp_that_undoes_the_mask(op: str, limit: float) -> None:
    def weigh(b: Builder, ids: str, scores: str, seen: str) -> str:
        return softmax(b, b(op, added(b, scores, seen, -1e4), b.const(limit, FLOAT)))

    proof = attention(weigh)
    # The smaller of a visible score and -5000 leaves half of the gap.
    if op == "Min":
        assert proof.verdict is Verdict.CAUSAL
        assert proof.score_bound == pytest.approx((5000 - 104) / 2)
    else:
        assert proof.verdict is Verdict.NOT_CAUSAL


def branch(b: Builder, name: str, scores: str, seen: str, fill: float) -> Any:
    """Masks scores in a body."""
    info = helper.make_tensor_value_info(f"{name}_r", TensorProto.FLOAT, None)
    filler = helper.make_tensor(f"{name}_f", TensorProto.FLOAT, [], [fill])
    nodes = [
        helper.make_node("Constant", [], [f"{name}_c"], value=filler),
        helper.make_node("Where", [seen, scores, f"{name}_c"], [f"{name}_r"]),
    ]
    return helper.make_graph(nodes, name, [], [info])


def chosen_by_data(fills: tuple[float, float]) -> Weights:
    def weigh(b: Builder, ids: str, scores: str, seen: str) -> str:
        total = b("ReduceSum", b("Cast", ids, to=TensorProto.FLOAT), keepdims=0)
        some = b("Greater", total, b.const(3.0, FLOAT))
        one, other = (branch(b, f"s{at}", scores, seen, fill) for at, fill in enumerate(fills))
        return softmax(b, b("If", some, then_branch=one, else_branch=other))

    return weigh


def test_branches_that_are_equal_do_not_show_the_condition() -> None:
    proof = attention(chosen_by_data((-np.inf, -np.inf)))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], LOWER)


def test_branches_that_differ_show_the_condition() -> None:
    assert attention(chosen_by_data((-np.inf, 0.0))).verdict is Verdict.NOT_CAUSAL
    assert attention(chosen_by_data((-np.inf, -1.0))).verdict is Verdict.NOT_CAUSAL


def causal_condition(fills: tuple[float, float]) -> Weights:
    """The condition reads the first token, which every row may see."""

    def weigh(b: Builder, ids: str, scores: str, seen: str) -> str:
        first = b("Gather", ids, b.const(0, np.int64), axis=1)
        some = b("Greater", b("ReduceSum", first, keepdims=0), b.const(3, np.int64))
        one, other = (branch(b, f"s{at}", scores, seen, fill) for at, fill in enumerate(fills))
        return softmax(b, b("If", some, then_branch=one, else_branch=other))

    return weigh


def test_what_both_branches_hide_is_hidden() -> None:
    assert attention(causal_condition((-np.inf, -np.inf))).verdict is Verdict.CAUSAL
    proof = attention(causal_condition((-np.inf, LOWEST)))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert attention(causal_condition((-np.inf, 0.0))).verdict is Verdict.NOT_CAUSAL
