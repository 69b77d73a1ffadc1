"""Leaks at some lengths or behind some pasts only: every one up to an end is examined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from influence_graphs import Builder
from onnx import ModelProto, TensorProto

from causal_attn.errors import InputError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT = np.float32
Seen = Callable[[Builder, str, str, str], str]
"""Builder, rows, columns and the number of positions to which key each query sees."""


def attention(seen: Seen, *, past: bool = False) -> ModelProto:
    """``x -> y``, or ``x, past -> y, present``: weights by what `seen` lets through."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    zero, one = b.const(0, np.int64), b.const(1, np.int64)
    keys = x
    if past:
        keys = b("Concat", b.input("past", ["b", "past_tokens", 4]), x, axis=1)
    positions = b("Gather", b("Shape", keys), one, axis=0)
    tokens = b("Gather", b("Shape", x), one, axis=0)
    columns = b("Range", zero, positions, one)
    rows = b("Add", b("Range", zero, tokens, one), b("Sub", positions, tokens))
    rows = b("Unsqueeze", rows, b.const([1], np.int64))
    mask = seen(b, rows, columns, positions)
    scores = b("MatMul", x, b("Transpose", keys, perm=[0, 2, 1]))
    masked = b("Where", mask, scores, b.const(-np.inf, FLOAT))
    y = b("MatMul", b("Softmax", masked), keys)
    return b.model({"y": y, **({"present": keys} if past else {})}, None)


def right(b: Builder, rows: str, columns: str, positions: str) -> str:
    return b("LessOrEqual", columns, rows)


def open_where(op: str, number: int) -> Seen:
    """No mask where the number of positions is equal to, or beyond, `number`."""

    def seen(b: Builder, rows: str, columns: str, positions: str) -> str:
        broken = b(op, positions, b.const(number, np.int64))
        return b("Or", right(b, rows, columns, positions), broken)

    return seen


def quotient(b: Builder, rows: str, columns: str, positions: str) -> str:
    """Queries see as many tokens ahead as 34 goes into the number of positions."""
    ahead = b("Div", positions, b.const(34, np.int64))
    return b("LessOrEqual", columns, b("Add", rows, ahead))


def tiled(b: Builder, rows: str, columns: str, positions: str) -> str:
    """A mask of 40 tokens, laid side by side."""
    size = b.const(40, np.int64)
    return b("LessOrEqual", b("Mod", columns, size), b("Mod", rows, size))


def pair(query: int, key: int) -> Seen:
    def seen(b: Builder, rows: str, columns: str, positions: str) -> str:
        at_row = b("Equal", rows, b.const(query, np.int64))
        both = b("And", at_row, b("Equal", columns, b.const(key, np.int64)))
        return b("Or", right(b, rows, columns, positions), both)

    return seen


LEAKS = {
    "at 7": open_where("Equal", 7),
    "at 20": open_where("Equal", 20),
    "at 64": open_where("Equal", 64),
    "from 34 on": open_where("GreaterOrEqual", 34),
    "a quotient by 34": quotient,
    "a tiled mask": tiled,
    "one wrong pair": pair(40, 50),
}


def proof_of(model: ModelProto, longest: int, *, past: bool = False, seconds: float = 60) -> Proof:
    return prove(
        model,
        Claim(
            tokens={"x": 1},
            past={"past": 1} if past else {},
            outputs={"y": 1},
            pasts=(0, 3) if past else (0,),
            longest=longest,
            seconds=seconds,
        ),
    )


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_at_some_lengths(name: str) -> None:
    model = attention(LEAKS[name])
    assert proof_of(model, 0).verdict is Verdict.CAUSAL
    proof = proof_of(model, 64)
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.leak is not None
    matrix = proof.outputs["y"]
    assert matrix[proof.leak.query, proof.leak.position]


def test_the_longest_length_is_examined() -> None:
    model = attention(open_where("Greater", 200))
    assert proof_of(model, 64).verdict is Verdict.CAUSAL
    assert proof_of(model, 257).verdict is Verdict.NOT_CAUSAL


def behind(number: int, op: str) -> Seen:
    """No mask where the past, the first row's position, is of some size."""

    def seen(b: Builder, rows: str, columns: str, positions: str) -> str:
        past = b("ReduceMin", rows, keepdims=0)
        broken = b(op, past, b.const(number, np.int64))
        return b("Or", right(b, rows, columns, positions), broken)

    return seen


@pytest.mark.parametrize(("number", "op"), [(40, "GreaterOrEqual"), (17, "Equal"), (64, "Equal")])
def test_a_leak_behind_some_pasts(number: int, op: str) -> None:
    model = attention(behind(number, op), past=True)
    assert proof_of(model, 0, past=True).verdict is Verdict.CAUSAL
    assert proof_of(model, 97, past=True).verdict is Verdict.NOT_CAUSAL


def test_what_was_examined_is_said() -> None:
    proof = proof_of(attention(right), 257)
    assert str(proof) == "causal at 1 to 64, 257 tokens, and for every length"
    proof = proof_of(attention(right, past=True), 40, past=True)
    assert str(proof).startswith("causal at 1 to 40 tokens, and behind pasts of 3 (")
    assert proof.every_length
    assert all(tokens + past <= 40 for tokens, past in proof.calls)


def test_what_no_time_was_left_for_is_said() -> None:
    """Lengths that are asked for are examined all the same."""
    proof = proof_of(attention(right), 64, seconds=0)
    assert set(proof.lengths) >= {1, 2, 3, 5, 8, 33}
    assert len(proof.left) == 64 - len(proof.lengths)
    assert f"time was up before {len(proof.left)} more sizes" in str(proof)


def test_lengths_that_do_not_fit_are_refused() -> None:
    b = Builder()
    x = b.input("x", ["b", 5, 4], TensorProto.FLOAT)
    past = b.input("past", ["b", 2, 4], TensorProto.FLOAT)
    model = b.model({"y": b("Concat", past, x, axis=1)}, None)
    claim = Claim(tokens={"x": 1}, past={"past": 1}, outputs={"y": 1}, pasts=(0,))
    with pytest.raises(InputError, match="must fit the fixed sizes"):
        prove(model, claim)
