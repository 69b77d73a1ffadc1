"""Outputs whose rows are not the tokens: how they grow says which position each row is of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from influence_graphs import Builder, allowed
from onnx import ModelProto

from causal_attn.errors import InputError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove
from causal_attn.verify.influence.rows import Rows, rows_that_grow

FLOAT, INT = np.float32, np.int64
Cut = Callable[[Builder, str], str]


def model(cut: Cut, *, leak: bool) -> ModelProto:
    """``y``, causal, and ``z``: other rows of the same, or of sums over all tokens."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    hidden = b("Where", allowed(b, x), scores, b.const(-np.inf, FLOAT))
    y = b("MatMul", b("Softmax", hidden), x)
    mixed = b("MatMul", b("Softmax", scores), x) if leak else y
    return b.model({"y": y, "z": cut(b, mixed)}, None)


def flat(b: Builder, h: str) -> str:
    return b("Reshape", h, b.const([-1, 4], INT))


def with_features(b: Builder, h: str) -> str:
    return b("Flatten", h)


def features_first(b: Builder, h: str) -> str:
    return b("Flatten", b("Transpose", h, perm=[0, 2, 1]))


def halves_first(b: Builder, h: str) -> str:
    """``[2, tokens, 2]`` in one axis."""
    parts = b("Reshape", h, b.const([0, 0, 2, 2], INT))
    return b("Flatten", b("Transpose", parts, perm=[0, 2, 1, 3]))


def sliced(start: int, end: int, step: int = 1) -> Cut:
    def cut(b: Builder, h: str) -> str:
        return b("Slice", h, *(b.const([n], INT) for n in (start, end, 1, step)))

    return cut


CUTS = {
    "batch and tokens in one": flat,
    "tokens and features in one": with_features,
    "features and tokens in one": features_first,
    "tokens between halves of features": halves_first,
    "without the last": sliced(0, -1),
    "without the first": sliced(1, 99),
    "every second": sliced(0, 99, 2),
    "every second from one on": sliced(1, 99, 2),
    "every third": sliced(0, 99, 3),
}


def proof_of(model: ModelProto, longest: int = 0) -> Proof:
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, others=["z"], longest=longest))


@pytest.mark.parametrize("name", CUTS)
def test_rows_that_are_causal(name: str) -> None:
    proof = proof_of(model(CUTS[name], leak=False), 12)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert set(proof.outputs) == {"y"}


@pytest.mark.parametrize("name", CUTS)
def test_rows_that_see_all_tokens(name: str) -> None:
    proof = proof_of(model(CUTS[name], leak=True))
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.leak is not None
    assert proof.leak.output == "z"
    assert proof.leak.position > proof.leak.query


def test_one_row_for_all_tokens_is_no_leak() -> None:
    def last(b: Builder, h: str) -> str:
        return b("Gather", h, b.const(-1, INT), axis=1)

    assert proof_of(model(last, leak=True)).verdict is Verdict.CAUSAL


def test_rows_whose_number_data_decides_are_undecided_by_name() -> None:
    def chosen(b: Builder, h: str) -> str:
        return b("NonZero", b("Greater", h, b.const(0, FLOAT)))

    proof = proof_of(model(chosen, leak=True))
    assert proof.verdict is Verdict.UNDECIDED
    assert any("output 'z'" in reason for reason in proof.undecided)


def test_a_cache_that_nobody_placed() -> None:
    """Its rows are the past and the tokens: each is reached by positions up to its own."""

    def cached(*, leak: bool) -> Proof:
        b = Builder()
        x = b.input("x", ["b", "tokens", 4])
        past = b.input("past", ["b", "past_tokens", 4])
        new = b("Add", x, b("ReduceMean", x, b.const([1], INT))) if leak else x
        made = b.model({"y": x, "z": b("Concat", past, new, axis=1)}, None)
        claim = Claim(
            tokens={"x": 1}, past={"past": 1}, outputs={"y": 1}, others=["z"], pasts=(0, 3),
            longest=12,
        )  # fmt: skip
        return prove(made, claim)

    proof = cached(leak=False)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert cached(leak=True).verdict is Verdict.NOT_CAUSAL


def test_positions_of_rows() -> None:
    every_second = rows_that_grow({(n, 0): (1, -(-n // 2), 4) for n in range(1, 8)})
    assert every_second is not None
    assert every_second.axis == 1
    (last,) = every_second.last_positions(4, 7, 0)
    assert last.tolist() == [0, 2, 4, 6]
    (behind,) = every_second.last_positions(4, 7, 5)
    assert behind.tolist() == [5, 7, 9, 11]
    assert every_second.last_positions(9, 7, 5) == []
    assert rows_that_grow({(1, 0): (1, 4), (2, 0): (1, 4)}) is None
    orders = Rows(1, {(1, 0): 2, (3, 0): 6}).last_positions(6, 3, 0)
    assert [order.tolist() for order in orders] == [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2]]


def test_others_must_be_outputs() -> None:
    claim = Claim(tokens={"x": 1}, outputs={"y": 1}, others=["w"])
    with pytest.raises(InputError, match="`others` must name outputs"):
        prove(model(flat, leak=False), claim)
