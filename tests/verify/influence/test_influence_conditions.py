"""Inputs that are held fixed are data too: where the claim needs their values, it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, allowed
from onnx import ModelProto, TensorProto

from causal_attn.errors import InputError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, positions, prove

FLOAT, INT = np.float32, np.int64
Mask = Callable[[Builder, str, str], str]
"""Builder, the causal mask and ``[b, tokens]`` integers to the mask that is applied."""


def masked(name: str, mask: Mask) -> ModelProto:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    given = b.input(name, ["b", "tokens"], TensorProto.INT64)
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    seen = mask(b, allowed(b, x), given)
    weights = b("Softmax", b("Where", seen, scores, b.const(-np.inf, FLOAT)))
    return b.model({"y": b("MatMul", weights, x)}, None)


def pairs(b: Builder, op: str, given: str) -> str:
    rows = b("Unsqueeze", given, b.const([2], INT))
    return b(op, b("Unsqueeze", given, b.const([1], INT)), rows)


def block(b: Builder, seen: str, types: str) -> str:
    """Tokens of type 1 see one another."""
    one = b("Equal", types, b.const(1, INT))
    rows, columns = (b("Unsqueeze", one, b.const([axis], INT)) for axis in (2, 1))
    return b("Or", seen, b("And", rows, columns))


def by_number(b: Builder, seen: str, given: str) -> str:
    """No mask but the order of the position ids."""
    return pairs(b, "LessOrEqual", given)


def documents(b: Builder, seen: str, given: str) -> str:
    return b("And", seen, b("Or", seen, pairs(b, "Equal", given)))


def proof_of(model: ModelProto, name: str, known: Any, words: str) -> Proof:
    claim = Claim(
        tokens={"x": 1, name: 1},
        outputs={"y": 1},
        known={name: known},
        conditions={name: words},
        lengths=(1, 2, 6),
    )
    return prove(model, claim)


def test_a_block_of_tokens_that_see_one_another_is_conditional() -> None:
    proof = proof_of(masked("types", block), "types", 0, "types are 0")
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.conditions == ("types are 0",)
    assert proof.leak is None
    assert str(proof).endswith(": while types are 0")


def test_a_mask_made_of_positions_is_conditional() -> None:
    model = masked("position_ids", by_number)
    proof = proof_of(model, "position_ids", positions, "position_ids count up")
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.conditions == ("position_ids count up",)


def test_documents_under_a_causal_mask_are_causal() -> None:
    proof = proof_of(masked("documents", documents), "documents", 1, "documents are 1")
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.conditions == ()


def test_a_leak_whatever_the_values_are_is_a_leak() -> None:
    model = masked("types", lambda b, seen, types: b("Not", b("Not", pairs(b, "Equal", types))))
    assert proof_of(model, "types", 0, "types are 0").verdict is Verdict.NOT_CAUSAL


def test_inputs_that_matter_together_are_all_named() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    given = [b.input(name, ["b", "tokens"], TensorProto.INT64) for name in ("s", "t")]
    both = [b("Equal", name, b.const(1, INT)) for name in given]
    rows = b("Unsqueeze", both[0], b.const([2], INT))
    columns = b("Unsqueeze", both[1], b.const([1], INT))
    seen = b("Or", allowed(b, x), b("And", rows, columns))
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    weights = b("Softmax", b("Where", seen, scores, b.const(-np.inf, FLOAT)))
    model = b.model({"y": b("MatMul", weights, x)}, None)
    words = {"s": "s are 0", "t": "t are 0"}
    claim = Claim(
        tokens={"x": 1, "s": 1, "t": 1}, outputs={"y": 1}, known={"s": 0, "t": 0},
        conditions=words, lengths=(1, 4),
    )  # fmt: skip
    assert prove(model, claim).conditions == ("s are 0", "t are 0")


def test_conditions_are_about_fixed_inputs() -> None:
    claim = Claim(tokens={"x": 1}, outputs={"y": 1}, conditions={"types": "types are 0"})
    with pytest.raises(InputError, match="`conditions` must be about inputs in `known`"):
        prove(masked("types", block), claim)


def rotated(by_nd: bool) -> ModelProto:
    """Rows of a table by position ids are added: each position reaches its own row only."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    ids = b.input("position_ids", ["b", "tokens"], TensorProto.INT64)
    table = b.weight(99, 4)
    if by_nd:
        rows = b("GatherND", table, b("Unsqueeze", ids, b.const([2], INT)))
    else:
        rows = b("Gather", table, ids)
    return b.model({"y": b("Add", x, rows)}, None)


@pytest.mark.parametrize("by_nd", [False, True])
def test_a_table_of_positions_is_causal(by_nd: bool) -> None:
    proof = proof_of(rotated(by_nd), "position_ids", positions, "position_ids count up")
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.eye(6, dtype=bool))


def test_gather_nd_by_data_may_read_any_row() -> None:
    """The batch index is known and exact; the row is data, so any of that sequence's rows is."""
    b = Builder()
    x = b.input("x", [1, "tokens", 4])
    ids = b.input("ids", [1, "tokens"], TensorProto.INT64)
    places = b("Unsqueeze", ids, b.const([2], INT))
    y = b("GatherND", x, places, batch_dims=1)
    claim = Claim(tokens={"x": 1, "ids": 1}, outputs={"y": 1}, lengths=[3])
    proof = prove(b.model({"y": y}, None), claim)
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.outputs["y"].all()
