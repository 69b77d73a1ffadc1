"""Scatter with indices that are data: anywhere along its axis, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT, INT = np.float32, np.int64


def proof_of(model: ModelProto) -> Proof:
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 2, 6]))


def routed(axis: int, op: str = "ScatterElements") -> ModelProto:
    """Each token is given to the best of four experts, or each expert takes its best token.

    Args:
        axis: 2: tokens choose; 1: experts do.
        op: What spreads the weights of those chosen.
    """
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    scores = b("Softmax", b("MatMul", x, b.weight(4, 4)))
    best = b("TopK", scores, b.const([1], INT), outputs=2, axis=axis)
    nothing = b("Mul", scores, b.const(0, FLOAT))
    if op == "ScatterElements":
        gates = b(op, nothing, f"{best}_1", best, axis=axis)
    else:
        # Batch and token are known, the expert is data.
        length = b("Gather", b("Shape", x), b.const(1, INT), axis=0)
        rows = b("Range", b.const(0, INT), length, b.const(1, INT))
        token = b("Unsqueeze", rows, b.const([0, 2], INT))
        batch = b("Mul", token, b.const(0, INT))
        place = b("Concat", batch, token, f"{best}_1", axis=2)
        gates = b(op, nothing, place, b("Squeeze", best, b.const([2], INT)))
    return b.model({"y": b("Mul", gates, x)}, None)


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_tokens_that_choose_experts_are_causal(op: str) -> None:
    proof = proof_of(routed(2, op))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.eye(6, dtype=bool))


def test_experts_that_choose_tokens_are_not() -> None:
    proof = proof_of(routed(1))
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.outputs["y"].all()


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_what_moves_is_reached(op: str, reduction: str) -> None:
    """Rows of ``y`` that change when a token or an index does are in the proof's matrix."""
    b = Builder()
    x = b.input("x", [1, "tokens", 2])
    ids = b.input("ids", [1, "tokens"], TensorProto.INT64)
    attributes: dict[str, Any] = {} if reduction == "none" else {"reduction": reduction}
    nothing = b("Mul", x, b.const(0, FLOAT))
    if op == "ScatterElements":
        index = b("Expand", b("Unsqueeze", ids, b.const([2], INT)), b("Shape", x))
        y = b(op, nothing, index, x, axis=1, **attributes)
    else:
        # The first index, of the sequence, is known.
        pair = b("Unsqueeze", ids, b.const([2], INT))
        place = b("Concat", b("Mul", pair, b.const(0, INT)), pair, axis=2)
        y = b(op, nothing, place, x, **attributes)
    model = b.model({"y": y}, None)
    claim = Claim(tokens={"x": 1, "ids": 1}, outputs={"y": 1}, lengths=[4])
    matrix = prove(model, claim).outputs["y"]
    run = ReferenceEvaluator(model)
    random = np.random.default_rng(0)
    for _ in range(20):
        feeds: dict[str, Any] = {
            "x": random.standard_normal((1, 4, 2)).astype(FLOAT),
            "ids": random.permutation(4)[None],
        }
        (before,) = run.run(None, feeds)
        at = int(random.integers(4))
        moved = {name: value.copy() for name, value in feeds.items()}
        moved["x"][0, at] += 1
        moved["ids"][0, at] = (moved["ids"][0, at] + 1) % 4
        (after,) = run.run(None, moved)
        changed = (np.asarray(before) != np.asarray(after)).any((0, 2))
        assert not (changed & ~matrix[:, at]).any()


def test_rows_beside_the_axis_stay_apart() -> None:
    """Weights of expert 0 are spread over experts; those of other tokens are not reached."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    best = b("ArgMax", x, axis=2, keepdims=1)
    first = b("Slice", x, b.const([0]), b.const([1]), b.const([2]))
    y = b("ScatterElements", x, best, first, axis=2)
    proof = proof_of(b.model({"y": y}, None))
    assert np.array_equal(proof.outputs["y"], np.eye(6, dtype=bool))


def test_a_path_by_places_that_data_decides_is_assumed() -> None:
    """Where a row is written is data: the path is there for some places, and says so."""
    b = Builder()
    x = b.input("x", [1, "tokens", 4])
    ids = b.input("ids", [1, "tokens"], TensorProto.INT64)
    index = b("Expand", b("Unsqueeze", ids, b.const([2], INT)), b("Shape", x))
    y = b("ScatterElements", b("Mul", x, b.const(0, FLOAT)), index, x, axis=1)
    claim = Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[3])
    leak = prove(b.model({"y": y}, None), claim).leak
    assert leak is not None
    assert any(node.startswith("ScatterElements") for node in leak.assumed)
