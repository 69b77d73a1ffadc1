"""Sums, products, quotients and extremes, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from causal_attn.verify.influence.every.affine import (
    FALSE,
    Affine,
    AtMost,
    Condition,
    Every,
    negated,
    settled,
)
from causal_attn.verify.influence.every.mapped import (
    Number,
    all_of,
    computed,
    lowered,
    mapped,
    sign_of,
)
from causal_attn.verify.influence.every.mapping import negative
from causal_attn.verify.influence.every.run import LONGEST, Call, Run, rule, silent
from causal_attn.verify.influence.every.symbolic import (
    LOW,
    Cases,
    Index,
    Symbolic,
    Unclear,
    one_of,
    surely,
)
from causal_attn.verify.influence.origin import POSITIVE

__all__ = ["multiplied"]


@rule("Add", "Sum")
def _add(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    if all(value.read is not None for value in same):
        return [computed(call.run, result, lambda *all_: _total(all_), same)]
    zeros = [surely(value, "zero") for value in same]
    odd = any(value.wild and value.of_rows for value in same)
    # Infinity and minus infinity are no number.
    hidden = [] if odd else [surely(value, "hidden") for value in same]
    low = one_of([surely(v, "low") for v in same]) if lowered(call.run, same) else None
    return [replace(result, zero=all_of(zeros), hidden=one_of(hidden), low=low)]


def _total(numbers: Sequence[Affine | float]) -> Number:
    total = numbers[0]
    for number in numbers[1:]:
        if isinstance(total, Affine) and isinstance(number, Affine):
            total = total + number
        elif isinstance(total, Affine) or isinstance(number, Affine):
            return None
        else:
            total = total + number
    return total


@rule("Sub")
def _sub(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    one, other = same
    if one.read is not None and other.read is not None:
        return [computed(call.run, result, _difference, same)]
    low = surely(one, "low") if lowered(call.run, [one]) else None
    tainted = result.tainted or lowered(call.run, [other])
    hidden = None if other.wild and other.of_rows else surely(one, "hidden")
    return [replace(result, hidden=hidden, low=low, tainted=tainted)]


def _difference(one: Affine | float, other: Affine | float) -> Number:
    minus = negative(other)
    return _total([one, minus]) if isinstance(minus, Affine | float) else None


@rule("Mul")
def _mul(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    return [multiplied(call, same, result)]


def multiplied(call: Call, same: Sequence[Symbolic], result: Symbolic) -> Symbolic:
    """The product of two tensors side by side."""
    one, other = same
    if one.read is not None and other.read is not None:
        return computed(call.run, result, _product, same)
    zero = one_of([silent(other, surely(one, "zero")), silent(one, surely(other, "zero"))])
    if any(_endless(call.run, value) for value in same):
        result = replace(result, wild=True)
    for scores, factor in (same, same[::-1]):
        if scores.hidden is not None and _positive(call.run, factor):
            return replace(result, zero=zero, hidden=scores.hidden)
    return replace(result, zero=zero)


def _endless(run: Run, value: Symbolic) -> bool:
    """Whether it is known to hold an infinity."""
    return any(not isinstance(n, Affine) and abs(n) == np.inf for n in run.seen(value))


def _positive(run: Run, value: Symbolic) -> bool:
    """Whether it is known to be a positive number, and a finite one."""
    return value.read is not None and sign_of(run, value) == POSITIVE


def _product(one: Affine | float, other: Affine | float) -> Number:
    if not isinstance(one, Affine) or not isinstance(other, Affine):
        if isinstance(one, Affine) or isinstance(other, Affine):
            return None
        return one * other
    if (fixed := one.fixed) is not None:
        return other.times(fixed)
    return one.times(other.fixed) if other.fixed is not None else None


@rule("Div")
def _div(call: Call) -> list[Symbolic]:
    one, other = call.tensor(0), call.tensor(1)
    if one.dtype.kind in "iu" and one.read is not None and other.read is not None:
        (one, other), axes = call.run.broadcast([one, other])
        result = Symbolic(axes, one.dtype)
        return [computed(call.run, result, partial(_quotient, call.run), [one, other])]
    (one, other), result = mapped(call, [one, other])
    positive = _positive(call.run, other)
    whole = positive or sign_of(call.run, other) == POSITIVE
    return [replace(
        result, zero=surely(one, "zero") if whole else None,
        hidden=surely(one, "hidden") if positive else None,
    )]  # fmt: skip


def _quotient(run: Run, one: Affine | float, other: Affine | float) -> Number:
    if not isinstance(one, Affine) or not isinstance(other, Affine):
        return None
    divisor = other.fixed
    # Rounded towards zero in ONNX: the same as down only from zero on.
    if divisor is None or divisor < 1 or not run.at_most(Affine(), one):
        return None
    if one.fixed is not None:
        return Affine(one.fixed // divisor)
    # What is asked of numbers of a dtype takes every variable to be a number of positions.
    if not run.at_most(one, Affine(LONGEST).times(divisor)):
        return None
    return run.quotient(one, divisor)


@rule("Mod")
def _mod(call: Call) -> list[Symbolic]:
    one, other = call.tensor(0), call.tensor(1)
    if one.dtype.kind not in "iu" or one.read is None or other.read is None:
        return [mapped(call, [one, other])[1]]
    same, axes = call.run.broadcast([one, other])

    def rest(number: Affine | float, divisor: Affine | float) -> Number:
        whole = _quotient(call.run, number, divisor)
        if not isinstance(whole, Affine) or not isinstance(divisor, Affine):
            return None
        assert isinstance(number, Affine)  # a quotient is of whole numbers
        return number - whole.times(divisor.constant)

    return [computed(call.run, Symbolic(axes, one.dtype), rest, same)]


@rule("Max", "Min")
def _extreme(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    biggest = call.node.op == "Max"
    if len(same) == 2 and result.dtype.kind in "iu" and all(v.read is not None for v in same):
        reads = [value.read for value in same]

        def read(index: Index) -> Cases:
            one, other = (item(index) for item in reads if item is not None)
            return _larger(one, other) if biggest else _larger(other, one, least=True)

        return [computed(call.run, result, lambda number: number, [replace(result, read=read)])]
    if biggest and len(same) == 2:
        for scores, floor in (same, same[::-1]):
            if _lowest(call.run, floor):
                marks = [surely(scores, "hidden"), surely(scores, "low")]
                return [replace(result, low=one_of(marks))]
    return [result]


def _larger(one: Cases, other: Cases, *, least: bool = False) -> Cases:
    """The larger of two whole numbers, or the smaller, by more cases."""
    cases: list[tuple[Condition, Affine | float]] = []
    for condition, a in one:
        for own, b in other:
            if not isinstance(a, Affine) or not isinstance(b, Affine):
                raise Unclear("it compares numbers that are not whole")
            first = AtMost(a - b) if least else AtMost(b - a)
            cases += [
                (settled(Every((condition, own, first))), a),
                (settled(Every((condition, own, negated(first)))), b),
            ]
    return tuple(case for case in cases if case[0] != FALSE)


def _lowest(run: Run, value: Symbolic) -> bool:
    numbers = run.seen(value)
    return bool(numbers) and all(not isinstance(n, Affine) and n <= LOW for n in numbers)
