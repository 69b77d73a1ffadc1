"""Comparisons, logic, and one of two tensors by a condition."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

from causal_attn.verify.influence.every.affine import (
    FALSE,
    Affine,
    AtMost,
    Condition,
    Every,
    Some,
    equal,
    less,
    negated,
    settled,
)
from causal_attn.verify.influence.every.mapped import (
    Number,
    all_of,
    computed,
    lowered,
    mapped,
)
from causal_attn.verify.influence.every.run import Call, Run, rule
from causal_attn.verify.influence.every.symbolic import (
    Cases,
    Index,
    Mark,
    Symbolic,
    Unclear,
    choice,
    holds,
    one_of,
    surely,
)

__all__ = ["selected"]

_COMPARED: dict[str, Callable[[Affine, Affine], Condition]] = {
    "Equal": equal,
    "Less": less,
    "LessOrEqual": lambda a, b: AtMost(a - b),
    "Greater": lambda a, b: less(b, a),
    "GreaterOrEqual": lambda a, b: AtMost(b - a),
}
_FLOATS: dict[str, Callable[[float, float], bool]] = {
    "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le,
    "Greater": operator.gt, "GreaterOrEqual": operator.ge,
}  # fmt: skip


@rule("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def _compare(call: Call) -> list[Symbolic]:
    op = call.node.op
    same, result = mapped(call, call.tensors(), bool)

    def compared(one: Affine | float, other: Affine | float) -> Number:
        if isinstance(one, Affine) and isinstance(other, Affine):
            return _COMPARED[op](one, other)
        if isinstance(one, Affine) or isinstance(other, Affine):
            return None
        return Affine(int(_FLOATS[op](one, other)))

    return [computed(call.run, replace(result, sized=False), compared, same)]


@rule("And", "Or", "Xor")
def _both(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors(), bool)
    if all(value.read is not None for value in same):
        reads = [value.read for value in same]

        def read(index: Index) -> Cases:
            one, other = (holds(item(index)) for item in reads if item is not None)
            if call.node.op == "And":
                return choice(Every((one, other)))
            if call.node.op == "Or":
                return choice(Some((one, other)))
            return choice(Some((Every((one, negated(other))), Every((negated(one), other)))))

        return [replace(result, read=read)]
    zeros = [surely(value, "zero") for value in same]
    if call.node.op == "Xor":
        return [result]
    return [replace(result, zero=one_of(zeros) if call.node.op == "And" else all_of(zeros))]


@rule("Not")
def _not(call: Call) -> list[Symbolic]:
    (value,), result = mapped(call, call.tensors(), bool)
    read = value.read
    if read is None:
        return [result]
    return [replace(result, read=lambda index: choice(negated(holds(read(index)))))]


@rule("Where")
def _where(call: Call) -> list[Symbolic]:
    values = call.tensors()
    same, result = mapped(call, values, values[1].dtype)
    return [selected(call.run, same, result)]


def selected(run: Run, same: Sequence[Symbolic], result: Symbolic) -> Symbolic:
    """One of two tensors, by a condition, all side by side."""
    condition, one, other = same
    if one.read is None and other.read is None and condition.read is not None:
        # Data of two kinds, by length: one may be as large as it likes.
        run.grows = True
    # Zeros in place of weights leave a sum of weights at most one.
    convex = any(
        value.convex and _nothing(run, rest) for value, rest in ((one, other), (other, one))
    )
    result = replace(result, convex=convex)
    if condition.read is None:
        if lowered(run, [one, other]):
            raise Unclear("data decides where the number of a mask stands")
        # Whichever is chosen, both say so.
        zero, hidden, low = (
            all_of([surely(one, what), surely(other, what)]) for what in ("zero", "hidden", "low")
        )
        low_too = low if lowered(run, [one, other]) else None
        return replace(result, zero=zero, hidden=hidden, low=low_too)
    asked = condition.read
    if one.read is not None and other.read is not None:
        reads = one.read, other.read

        def read(index: Index) -> Cases:
            true = holds(asked(index))
            ways = ((true, reads[0]), (negated(true), reads[1]))
            cases = [
                (settled(Every((way, own))), number)
                for way, values in ways
                for own, number in values(index)
            ]
            return tuple(case for case in cases if case[0] != FALSE)

        return replace(result, read=read)

    def either(what: str) -> Mark:
        marks = surely(one, what), surely(other, what)

        def mark(index: Index) -> Condition:
            true = holds(asked(index))
            ways = (Every((true, marks[0](index))), Every((negated(true), marks[1](index))))
            return settled(Some(ways))

        return mark

    low_too = either("low") if lowered(run, [one, other]) else None
    return replace(result, zero=either("zero"), hidden=either("hidden"), low=low_too)


def _nothing(run: Run, value: Symbolic) -> bool:
    """Whether it is zero all over."""
    return run.never(negated(surely(value, "zero")(run.places(value)[0])))
