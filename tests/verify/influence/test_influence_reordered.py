"""Rows that data sorts or picks, and that return to where they came from: experts by order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from influence_graphs import Builder
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT, INT = np.float32, np.int64
Mixture = Callable[[Builder, str, str], str]
"""Builder, rows ``[tokens, 4]`` and the expert of each ``[tokens]`` to rows of the same shape."""


def model(mixture: Mixture) -> ModelProto:
    b = Builder()
    x = b.input("x", [1, "tokens", 4])
    rows = b("Reshape", x, b.const([-1, 4], INT))
    expert = b("ArgMax", b("MatMul", rows, b.const(np.eye(4, 3), FLOAT)), axis=1, keepdims=0)
    y = mixture(b, rows, expert)
    return b.model({"y": b("Reshape", y, b.const([1, -1, 4], INT))}, None)


def count(b: Builder, rows: str) -> str:
    return b("Shape", rows, start=0, end=1)


def order(b: Builder, expert: str) -> str:
    """The rows in the order of their experts."""
    return f"{b('TopK', expert, count(b, expert), outputs=2, axis=0, largest=0)}_1"


def work(b: Builder, taken: str, experts: str) -> str:
    """Each row by the matrix of its expert."""
    matrices = b("Gather", b.const(b.random.normal(size=(3, 4, 4)), FLOAT), experts)
    column = b("Unsqueeze", taken, b.const([1], INT))
    done = b("Squeeze", b("MatMul", column, matrices), b.const([1], INT))
    return b("Mul", done, b("Sigmoid", done))


def nothing(b: Builder, rows: str) -> str:
    return b("Mul", rows, b.const(0, FLOAT))


def places(b: Builder, rows: str) -> str:
    length = b("Squeeze", count(b, rows))
    return b("Range", b.const(0, INT), length, b.const(1, INT))


def taken_and_worked(b: Builder, rows: str, expert: str) -> tuple[str, str]:
    at = order(b, expert)
    return at, work(b, b("Gather", rows, at), b("Gather", expert, at))


def added_back(b: Builder, rows: str, expert: str) -> str:
    at, done = taken_and_worked(b, rows, expert)
    index = b("Unsqueeze", at, b.const([1], INT))
    return b("ScatterND", nothing(b, rows), index, done, reduction="add")


def written_back(b: Builder, rows: str, expert: str) -> str:
    at, done = taken_and_worked(b, rows, expert)
    column = b("Unsqueeze", at, b.const([1], INT))
    index = b("Expand", column, b("Shape", rows))
    return b("ScatterElements", nothing(b, rows), index, done, axis=0)


def sorted_back(b: Builder, rows: str, expert: str) -> str:
    """By the order of the order."""
    at, done = taken_and_worked(b, rows, expert)
    return b("Gather", done, order(b, at))


def numbered_back(b: Builder, rows: str, expert: str) -> str:
    """By the places that each row was given."""
    at, done = taken_and_worked(b, rows, expert)
    number = places(b, rows)
    zeros = b("Mul", number, b.const(0, INT))
    return b("Gather", done, b("ScatterElements", zeros, at, number, axis=0))


def of_two_experts(b: Builder, rows: str, expert: str) -> str:
    """Every row twice in the order, for its best and for the next expert; sums return."""
    both = b(
        "Concat", expert, b("Mod", b("Add", expert, b.const(1, INT)), b.const(3, INT)), axis=0
    )
    at = order(b, both)
    token = b("Mod", at, b("Squeeze", count(b, rows)))
    done = work(b, b("Gather", rows, token), b("Gather", both, at))
    index = b("Unsqueeze", token, b.const([1], INT))
    return b("ScatterND", nothing(b, rows), index, done, reduction="add")


def picked(b: Builder, rows: str, expert: str) -> str:
    """One expert after the other takes those that a mask picks."""
    result = nothing(b, rows)
    for number in range(3):
        mask = b("Equal", expert, b.const(number, INT))
        index = b("Transpose", b("NonZero", mask), perm=[1, 0])
        token = b("Squeeze", index, b.const([1], INT))
        done = b("Tanh", b("MatMul", b("Gather", rows, token), b.weight(4, 4)))
        result = b("ScatterND", result, index, done, reduction="add")
    return result


BACK: dict[str, Mixture] = {
    "added": added_back,
    "written": written_back,
    "sorted": sorted_back,
    "numbered": numbered_back,
    "two experts": of_two_experts,
    "picked": picked,
}


def left_in_order(b: Builder, rows: str, expert: str) -> str:
    return taken_and_worked(b, rows, expert)[1]


def back_by_another(b: Builder, rows: str, expert: str) -> str:
    _, done = taken_and_worked(b, rows, expert)
    other = b("Sub", b.const(2, INT), expert)
    return b("Gather", done, order(b, order(b, other)))


def back_by_the_order(b: Builder, rows: str, expert: str) -> str:
    at, done = taken_and_worked(b, rows, expert)
    return b("Gather", done, at)


def with_capacity(b: Builder, rows: str, expert: str) -> str:
    """The first two of the order alone."""
    at, done = taken_and_worked(b, rows, expert)
    ends = (b.const([0], INT), b.const([2], INT), b.const([0], INT))
    index = b("Unsqueeze", b("Slice", at, *ends), b.const([1], INT))
    return b("ScatterND", nothing(b, rows), index, b("Slice", done, *ends), reduction="add")


def summed_in_order(b: Builder, rows: str, expert: str) -> str:
    at, done = taken_and_worked(b, rows, expert)
    index = b("Unsqueeze", at, b.const([1], INT))
    summed = b("CumSum", done, b.const(0, INT))
    return b("ScatterND", nothing(b, rows), index, summed, reduction="add")


def numbered_in_order(b: Builder, rows: str, expert: str) -> str:
    """Each row is told its place among the sorted."""
    at, done = taken_and_worked(b, rows, expert)
    number = b("Cast", b("Unsqueeze", places(b, rows), b.const([1], INT)), to=TensorProto.FLOAT)
    index = b("Unsqueeze", at, b.const([1], INT))
    told = b("Add", done, number)
    return b("ScatterND", nothing(b, rows), index, told, reduction="add")


def last_one_stays(b: Builder, rows: str, expert: str) -> str:
    """Two rows go to one place, and the order says which of them is seen there."""
    at, done = taken_and_worked(b, rows, expert)
    half = b("Unsqueeze", b("Div", at, b.const(2, INT)), b.const([1], INT))
    return b("ScatterND", nothing(b, rows), half, done)


def picked_by_others(b: Builder, rows: str, expert: str) -> str:
    """A row is picked by the expert of the next one."""
    ends = (b.const([value], INT) for value in (1, 99, 0))
    following = b("Pad", b("Slice", expert, *ends), b.const([0, 1], INT))
    mask = b("Equal", following, b.const(1, INT))
    index = b("Transpose", b("NonZero", mask), perm=[1, 0])
    done = b("Tanh", b("Gather", rows, b("Squeeze", index, b.const([1], INT))))
    return b("ScatterND", nothing(b, rows), index, done, reduction="add")


OPEN: dict[str, Mixture] = {
    "left in order": left_in_order,
    "back by another order": back_by_another,
    "back by the order itself": back_by_the_order,
    "with a capacity": with_capacity,
    "summed in order": summed_in_order,
    "told its place": numbered_in_order,
    "the last one stays": last_one_stays,
    "picked by others": picked_by_others,
}


def proof_of(made: ModelProto) -> Proof:
    return prove(made, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 2, 5]))


def changes(made: ModelProto) -> NDArray[np.bool_]:
    """Which row moved when which token was changed, in many random runs."""
    run, random = ReferenceEvaluator(made), np.random.default_rng(0)
    seen = np.zeros((5, 5), bool)
    for _ in range(120):
        x = random.standard_normal((1, 5, 4)).astype(FLOAT)
        (before,) = run.run(None, {"x": x})
        at = int(random.integers(5))
        moved = x.copy()
        moved[0, at] = random.standard_normal(4)
        (after,) = run.run(None, {"x": moved})
        seen[:, at] |= ~np.isclose(np.asarray(before), np.asarray(after)).all((0, 2))
    return seen


@pytest.mark.parametrize("name", BACK)
def test_rows_that_return_are_causal(name: str) -> None:
    made = model(BACK[name])
    proof = proof_of(made)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.eye(5, dtype=bool))
    assert np.array_equal(changes(made), np.eye(5, dtype=bool))


@pytest.mark.parametrize("name", OPEN)
def test_rows_that_show_the_order_are_not(name: str) -> None:
    made = model(OPEN[name])
    moved = changes(made)
    assert np.triu(moved, 1).any()
    proof = proof_of(made)
    assert proof.verdict in (Verdict.NOT_CAUSAL, Verdict.UNDECIDED)
    assert not (moved & ~proof.outputs["y"]).any()


@pytest.mark.parametrize("name", ["left in order", "summed in order", "back by another order"])
def test_the_path_begins_at_the_input(name: str) -> None:
    leak = proof_of(model(OPEN[name])).leak
    assert leak is not None
    assert leak.path[0].startswith("x[")
    assert leak.path[-1].endswith("y[0, 0, 0]")
    assert leak.assumed
