"""What is said of every length: never of a graph that leaks at one, though none was examined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, decoder
from onnx import ModelProto, TensorProto, helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, ones, positions, prove
from causal_attn.verify.influence.every import prove_every_length
from causal_attn.verify.influence.proof import ask

INT = np.int64
CLAIM = Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=(1, 2, 3, 5))


class Places:
    """Rows, columns and the length in a graph, to write masks with."""

    def __init__(self, b: Builder, source: str) -> None:
        self.b = b
        self.length = b("Gather", b("Shape", source), b.const(1, INT), axis=0)
        self.places = b("Range", self.at(0), self.length, self.at(1))
        self.row = b("Unsqueeze", self.places, b.const([1], INT))
        self.column = b("Unsqueeze", self.places, b.const([0], INT))

    def at(self, number: int) -> str:
        return self.b.const(number, INT)

    def op(self, name: str, one: str, other: str | int, **attributes: Any) -> str:
        given = self.at(other) if isinstance(other, int) else other
        return self.b(name, one, given, **attributes)

    def cast(self, name: str, to: int) -> str:
        return self.b("Cast", name, to=to)

    @property
    def causal(self) -> str:
        return self.op("LessOrEqual", self.column, self.row)

    def longer(self, tokens: int) -> str:
        return self.op("Greater", self.length, tokens)


Mask = Callable[[Places], str]


def attends(
    visible: Mask,
    *,
    fill: float = -np.inf,
    value: Callable[[Places, str], str] = lambda p, x: x,
    scores: Callable[[Places, str], str] = lambda p, x: x,
    opset: int = 18,
) -> ModelProto:
    """``x -> y``: rows of four features attend to one another where `visible` says so."""
    b = Builder(opset)
    x = b.input("x", ["batch", "tokens", 4])
    p = Places(b, x)
    score = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    bias = b("Where", visible(p), b.const(0.0, np.float32), b.const(fill, np.float32))
    weights = b("Softmax", scores(p, b("Add", score, bias)), axis=-1)
    mixed = b("MatMul", weights, value(p, x))
    return b.model({"y": b("MatMul", mixed, b.weight(4, 4))})


def made(function: Callable[[Builder, str], str], opset: int = 18) -> ModelProto:
    b = Builder(opset)
    x = b.input("x", ["batch", "tokens", 4])
    return b.model({"y": function(b, x)})


def reason(model: ModelProto, claim: Claim = CLAIM) -> str:
    return prove_every_length(ask(model, claim, None), tuple(claim.pasts)).reason


def either(p: Places, *conditions: str) -> str:
    result, *others = conditions
    for other in others:
        result = p.op("Or", result, other)
    return result


def branched(p: Places) -> str:
    """The mask of a body that a condition on the length chooses."""
    bodies = []
    for name in ("then", "else"):
        node = helper.make_node(
            "Identity" if name == "else" else "Not", [p.causal], [f"{name}_mask"]
        )
        info = helper.make_tensor_value_info(f"{name}_mask", TensorProto.BOOL, None)
        bodies.append(helper.make_graph([node], name, [], [info]))
    return p.b("If", p.longer(300), then_branch=bodies[0], else_branch=bodies[1])


def of_table(wrong: tuple[int, int] | None = None, size: int = 512) -> Mask:
    def mask(p: Places) -> str:
        table = np.tri(size, dtype=bool)
        if wrong is not None:
            table[wrong] = True
        ends = p.b("Unsqueeze", p.length, p.b.const([0], INT))
        both = p.b("Concat", ends, ends, axis=0)
        starts, axes = p.b.const([0, 0], INT), p.b.const([0, 1], INT)
        return p.b("Slice", p.b.const(table), starts, both, axes)

    return mask


def tiled(p: Places) -> str:
    """A table of 8 rows, indexed around."""
    table = p.b("Gather", p.b.const(np.tri(8, dtype=bool)), p.op("Mod", p.places, 8), axis=0)
    return p.b("Gather", table, p.op("Mod", p.places, 8), axis=1)


WRONG_MASKS: dict[str, Mask] = {
    "open at 20 tokens": lambda p: either(p, p.causal, p.op("Equal", p.length, 20)),
    "open beyond 300 tokens": lambda p: either(p, p.causal, p.longer(300)),
    "open from 34 tokens on, by a quotient": lambda p: either(
        p, p.causal, p.op("GreaterOrEqual", p.op("Div", p.length, 34), 1)
    ),
    "open at multiples of 77": lambda p: either(
        p, p.causal, p.op("Equal", p.op("Mod", p.length, 77), 0)
    ),
    "one wrong pair": lambda p: either(
        p, p.causal, p.op("And", p.op("Equal", p.row, 40), p.op("Equal", p.column, 50))
    ),
    "tiles of 32": lambda p: p.op(
        "LessOrEqual", p.op("Mod", p.column, 32), p.op("Mod", p.row, 32)
    ),
    "columns counted around at 50": lambda p: p.op(
        "LessOrEqual", p.op("Mod", p.column, 50), p.row
    ),
    "a ring of 64": lambda p: p.op(
        "Less", p.op("Mod", p.op("Sub", p.column, p.row), 64), 1
    ),
    "another mask beyond 100 tokens": lambda p: p.b(
        "Where", p.longer(100), p.op("GreaterOrEqual", p.column, p.row), p.causal
    ),
    "a diagonal that moves with the length": lambda p: p.op(
        "LessOrEqual", p.column, p.op("Add", p.row, p.op("Div", p.length, 100))
    ),
    "a diagonal that moves once": lambda p: p.op(
        "LessOrEqual", p.column,
        p.op("Add", p.row, p.cast(p.longer(200), TensorProto.INT64)),
    ),
    "a diagonal that moves down the rows": lambda p: p.op(
        "LessOrEqual", p.column, p.op("Add", p.row, p.op("Div", p.row, 40))
    ),
    "rows that see the first of many": lambda p: p.op(
        "LessOrEqual", p.column, p.b("Max", p.row, p.op("Sub", p.length, 300))
    ),
    "columns that are cut at 300": lambda p: p.op(
        "LessOrEqual", p.b("Min", p.column, p.at(300)), p.row
    ),
    "an open column": lambda p: either(p, p.causal, p.op("Equal", p.column, 400)),
    "open columns behind": lambda p: either(p, p.causal, p.op("Greater", p.column, 400)),
    "an open row": lambda p: either(p, p.causal, p.op("Equal", p.row, 301)),
    "an open corner": lambda p: either(
        p, p.causal, p.op("Less", p.op("Add", p.row, 300), p.column)
    ),
    "twice as far from the 100th row on": lambda p: p.op(
        "LessOrEqual", p.column,
        p.b("Max", p.row, p.op("Sub", p.op("Mul", p.row, 2), 100)),
    ),
    "turned over at 128 tokens": lambda p: p.op(
        "Xor", p.causal, p.op("Equal", p.length, 128)
    ),
    "columns of one less at 77 tokens": lambda p: p.op(
        "LessOrEqual",
        p.op("Sub", p.column, p.cast(p.op("Equal", p.length, 77), TensorProto.INT64)), p.row,
    ),
    "places in float16": lambda p: p.op(
        "LessOrEqual", p.cast(p.column, TensorProto.FLOAT16), p.cast(p.row, TensorProto.FLOAT16)
    ),
    "places in a byte": lambda p: p.op(
        "LessOrEqual", p.cast(p.cast(p.column, TensorProto.UINT8), TensorProto.INT32),
        p.cast(p.row, TensorProto.INT32),
    ),
    "products that overflow": lambda p: p.op(
        "LessOrEqual",
        *(
            p.b("Mul", p.cast(one, TensorProto.INT32), p.b.const(1 << 20, np.int32))
            for one in (p.column, p.row)
        ),
    ),
    "squares": lambda p: p.op(
        "LessOrEqual", p.op("Mul", p.column, p.column), p.op("Mul", p.row, p.row)
    ),
    "a triangle that moves with the length": lambda p: p.b(
        "Trilu", p.b("Less", p.op("Sub", p.row, p.column), p.length),
        p.op("Div", p.length, 34), upper=0,
    ),
    "a table that ends": of_table(),
    "a table with a wrong pair": of_table((40, 50)),
    "a table of 8, tiled": tiled,
    "a branch on the length": branched,
    "no mask": lambda p: p.op("GreaterOrEqual", p.row, 0),
    "one to the right": lambda p: p.op("Less", p.column, p.op("Add", p.row, 2)),
    "transposed": lambda p: p.op("LessOrEqual", p.row, p.column),
    "places from the end": lambda p: p.op(
        "LessOrEqual", p.column,
        p.b("Gather", p.row, p.op("Sub", p.places, 1), axis=0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_a_mask_that_is_open_at_some_length_is_not_for_every_length(name: str) -> None:
    assert reason(attends(WRONG_MASKS[name]))
    assert reason(attends(WRONG_MASKS[name], fill=-3e38))


def test_a_leak_beyond_what_is_examined_is_left_open() -> None:
    """It is causal at the lengths that were looked at, and no more is said."""
    proof = prove(attends(WRONG_MASKS["open beyond 300 tokens"]), CLAIM)
    assert proof.verdict is Verdict.CAUSAL
    assert not proof.every_length
    assert "other lengths are open: output 'y': Softmax" in str(proof)
    assert "no mask hides later positions from it at every length" in proof.other_lengths


def longer_than(b: Builder, x: str, tokens: int, then: str, otherwise: str) -> str:
    return b("Where", Places(b, x).longer(tokens), then, otherwise)


def summed_up(b: Builder, x: str) -> str:
    none = b.const(0.0, np.float32)
    return b("Add", x, longer_than(b, x, 300, b("ReduceMean", x, b.const([1], INT)), none))


def cut(b: Builder, x: str) -> str:
    one, none = b.const([1], INT), b.const([0], INT)
    start = longer_than(b, x, 300, one, none)
    tail = b("Slice", x, start, b.const([1 << 40], INT), one)
    size = b("Shape", x)
    return b("Expand", b("ReduceMax", tail, one), size)


def picked(b: Builder, x: str) -> str:
    p = Places(b, x)
    later = b("Min", p.op("Add", p.places, 1), p.op("Sub", p.length, 1))
    return b("Gather", x, b("Where", p.longer(300), later, p.places), axis=1)


def triangle(b: Builder, x: str) -> str:
    p = Places(b, x)
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    return b("MatMul", b("Trilu", scores, p.op("Div", p.length, 300), upper=0), x)


def grouped(b: Builder, x: str) -> str:
    blocks = b("Reshape", x, b.const([0, -1, 8, 4], INT))
    return b("Reshape", b("Softmax", blocks, axis=2), b.const([0, -1, 4], INT))


def turned(b: Builder, x: str) -> str:
    return b("Softmax", x, axis=1)


def reversed_sum(b: Builder, x: str) -> str:
    return b("CumSum", x, b.const(1, INT), reverse=1)


def normed(b: Builder, x: str) -> str:
    first = b("Slice", x, b.const([0], INT), b.const([5], INT), b.const([1], INT))
    weight = b.weight(5, 4)
    return b("LayerNormalization", first, weight, axis=1)


WRONG_NODES = [summed_up, cut, picked, triangle, grouped, turned, reversed_sum, normed]


@pytest.mark.parametrize("function", WRONG_NODES)
def test_a_node_that_moves_rows_at_some_length_is_not_for_every_length(
    function: Callable[[Builder, str], str],
) -> None:
    assert reason(made(function))


def test_a_finite_mask_that_is_taken_back_at_some_length() -> None:
    def back(p: Places, scores: str) -> str:
        bias = p.b("Where", p.causal, *(p.b.const(n, np.float32) for n in (0.0, 3e38)))
        none = p.b.const(0.0, np.float32)
        return p.b("Add", scores, p.b("Where", p.longer(300), bias, none))

    assert "in more than a mask" in reason(attends(lambda p: p.causal, fill=-3e38, scores=back))


@pytest.mark.parametrize("open_row", [150, 300])
def test_a_finite_mask_over_a_whole_row_hides_nothing(open_row: int) -> None:
    def mask(p: Places) -> str:
        return p.op("And", p.causal, p.b("Not", p.op("Equal", p.row, open_row)))

    assert reason(attends(mask, fill=-3e38))
    # Where it is -inf the row is no number, whatever the data is.
    assert not reason(attends(mask))


def test_what_is_no_number_at_some_length_passes_a_weight_of_zero() -> None:
    def value(p: Places, x: str) -> str:
        short = p.cast(p.op("LessOrEqual", p.length, 300), TensorProto.FLOAT)
        return p.b("Div", x, short)

    assert reason(attends(lambda p: p.causal, value=value))


def test_scores_that_grow_with_the_length_do_not_stay_under_a_finite_mask() -> None:
    def grown(p: Places, scores: str) -> str:
        return p.b("Mul", scores, p.cast(p.length, TensorProto.FLOAT))

    model = attends(lambda p: p.causal, fill=-3e38, scores=lambda p, s: s)
    found = prove_every_length(ask(model, CLAIM, None), (0,))
    assert (found.reason, found.finite, found.grows) == ("", True, False)
    b = Builder()
    x = b.input("x", ["batch", "tokens", 4])
    p = Places(b, x)
    bias = b("Where", p.causal, b.const(0.0, np.float32), b.const(-3e38, np.float32))
    scores = grown(p, b("MatMul", x, b("Transpose", x, perm=[0, 2, 1])))
    mixed = b("MatMul", b("Softmax", b("Add", scores, bias), axis=-1), x)
    found = prove_every_length(ask(b.model({"y": mixed}), CLAIM, None), (0,))
    assert (found.reason, found.finite, found.grows) == ("", True, True)
    proof = prove(b.model({"y": mixed}), CLAIM)
    assert proof.verdict is Verdict.CONDITIONAL
    assert "scores may grow with the length" in proof.other_lengths


RIGHT_MASKS: dict[str, Mask] = {
    "less or equal": lambda p: p.causal,
    "less": lambda p: p.op("Less", p.column, p.op("Add", p.row, 1)),
    "greater": lambda p: p.b("Not", p.op("Greater", p.column, p.row)),
    "a difference": lambda p: p.op("GreaterOrEqual", p.op("Sub", p.row, p.column), 0),
    "a triangle": lambda p: p.b("Trilu", p.op("GreaterOrEqual", p.op("Add", p.row, p.column), 0),
                                upper=0),
    "a window": lambda p: p.op(
        "And", p.causal, p.op("Greater", p.column, p.op("Sub", p.row, 4096))
    ),
    "an open prefix, below the diagonal": lambda p: either(
        p, p.causal, p.op("And", p.op("Less", p.column, 4), p.op("Greater", p.row, 9))
    ),
    "int32": lambda p: p.op(
        "LessOrEqual", *(p.cast(one, TensorProto.INT32) for one in (p.column, p.row))
    ),
    "another mask beyond 100 tokens": lambda p: p.b(
        "Where", p.longer(100), p.op("Less", p.column, p.row), p.causal
    ),
    "a diagonal that moves back with the length": lambda p: p.op(
        "LessOrEqual", p.op("Add", p.column, p.op("Div", p.length, 100)), p.row
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT_MASKS)
def test_a_mask_that_is_a_formula_is_for_every_length(name: str) -> None:
    proof = prove(attends(RIGHT_MASKS[name]), CLAIM)
    assert proof.verdict is Verdict.CAUSAL
    assert proof.every_length, proof.other_lengths
    assert str(proof) == "causal at 1 to 3, 5 tokens, and for every length"


def test_the_lowest_float_as_a_mask_is_for_every_length_while_scores_are_small() -> None:
    proof = prove(attends(lambda p: p.causal, fill=-3e38), CLAIM)
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.every_length
    claim = Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=(1, 2, 5))
    bounded = prove(decoder(fill=-3.4e38), claim)
    assert bounded.verdict is Verdict.CAUSAL
    assert bounded.every_length, bounded.other_lengths
    small = prove(decoder(fill=-1e4), claim)
    assert not small.every_length


def test_weights_without_a_softmax() -> None:
    def linear(b: Builder, x: str) -> str:
        scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
        return b("MatMul", b("Trilu", scores, upper=0), x)

    def running(b: Builder, x: str) -> str:
        return b("CumSum", x, b.const(1, INT))

    for function in (linear, running):
        assert prove(made(function), CLAIM).every_length, function


@pytest.mark.parametrize("opset", [23, 25])
@pytest.mark.parametrize("masked", [False, True])
def test_the_operator_of_onnx(opset: int, masked: bool) -> None:
    def attention(b: Builder, x: str, mask: Mask) -> str:
        heads = [b("Unsqueeze", x, b.const([1], INT))] * 3
        if not masked:
            return b("Squeeze", b("Attention", *heads, is_causal=1), b.const([1], INT))
        return b("Squeeze", b("Attention", *heads, mask(Places(b, x))), b.const([1], INT))

    good = made(lambda b, x: attention(b, x, lambda p: p.causal), opset)
    found = prove_every_length(ask(good, CLAIM, None), (0,))
    assert (found.reason, found.finite) == ("", opset < 25)
    if masked:
        wrong = WRONG_MASKS["open beyond 300 tokens"]
        assert reason(made(lambda b, x: attention(b, x, wrong), opset))


def cached(shift: int = 0, ring: bool = False) -> ModelProto:
    """A cache of 4 features before the new tokens: ``x, past, mask, places -> y, present``."""
    b = Builder(18)
    x = b.input("x", ["batch", "tokens", 4])
    past = b.input("past", ["batch", "past_tokens", 4])
    mask = b.input("mask", ["batch", "past_tokens + tokens"], TensorProto.INT64)
    places = b.input("places", ["batch", "tokens"], TensorProto.INT64)
    present = b("Concat", past, x, axis=1)
    if ring:
        present = b("Slice", present, *(b.const([n], INT) for n in (-48, 1 << 40, 1)))
    total = b("Gather", b("Shape", mask), b.const(1, INT), axis=0)
    keys = b("Range", b.const(0, INT), total, b.const(1, INT))
    rows = b("Unsqueeze", b("Add", places, b.const(shift, INT)), b.const([2], INT))
    seen = b("LessOrEqual", keys, rows)
    seen = b("And", seen, b("Unsqueeze", b("Cast", mask, to=TensorProto.BOOL), b.const([1], INT)))
    scores = b("MatMul", x, b("Transpose", present, perm=[0, 2, 1]))
    scores = b("Where", seen, scores, b.const(-np.inf, np.float32))
    mixed = b("MatMul", b("Softmax", scores, axis=-1), present)
    return b.model({"y": mixed, "present": present}, None)


def claim_of_cache(**changes: Any) -> Claim:
    fields: dict[str, Any] = {
        "tokens": {"x": 1, "places": 1}, "past": {"past": 1}, "total": {"mask": 1},
        "outputs": {"y": 1, "present": 1}, "known": {"mask": ones, "places": positions},
        "lengths": (1, 2, 5), "pasts": (0, 3),
    }  # fmt: skip
    return Claim(**{**fields, **changes})


def proof_of_cache(model: ModelProto, **changes: Any) -> Proof:
    return prove(model, claim_of_cache(**changes))


def test_behind_every_past() -> None:
    proof = proof_of_cache(cached())
    assert proof.verdict is Verdict.CAUSAL
    assert proof.every_length, proof.other_lengths
    assert "and for every length" in str(proof)


def test_behind_some_pasts_only() -> None:
    def restarts_at_100(shape: tuple[int, ...], axis: int, past: int) -> Any:
        return positions(shape, axis, past if past < 100 else past + 1)

    assert reason(cached(1), claim_of_cache())
    assert reason(cached(ring=True), claim_of_cache())

    def counts_one_more_from_300(shape: tuple[int, ...], axis: int, past: int) -> Any:
        return positions(shape, axis, past if past < 300 else past + 1)

    known = {"mask": ones, "places": counts_one_more_from_300}
    assert "follow no formula" in reason(cached(), claim_of_cache(known=known))
    known = {"mask": ones, "places": restarts_at_100}
    assert "follow no formula" in reason(cached(), claim_of_cache(known=known))
    listed = {"mask": ones, "places": np.arange(5)}
    assert "for some lengths only" in reason(cached(), claim_of_cache(known=listed))


def test_an_output_that_is_not_examined_by_rows_leaves_it_open() -> None:
    model = attends(lambda p: p.causal)
    claim = Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=(1, 2))
    assert prove(model, claim).every_length
    fixed = attends(lambda p: p.causal)
    fixed.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    fixed.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    assert not prove(fixed, claim).every_length
