"""Operators that make each element of the result of those at the same place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

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
from causal_attn.verify.influence.every.run import LONGEST, Call, Run, rule, silent
from causal_attn.verify.influence.every.symbolic import (
    LOW,
    Cases,
    Index,
    Mark,
    Symbolic,
    Unclear,
    by_case,
    choice,
    holds,
    one_of,
    surely,
)
from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.origin import ANY, NOT_NEGATIVE, POSITIVE
from causal_attn.verify.influence.registry import MICROSOFT

__all__ = ["clean", "lowered", "mapped", "multiplied", "selected"]

_BOUNDED = {"Sin", "Cos", "Tanh", "Sigmoid", "Erf"}
_LARGE = 1e6
_EXACT = 256
"""Whole numbers up to here are exact in every float that a kernel computes in."""
_KEEPS_INFINITY = {"float16", "bfloat16", "float32", "float64"}
_POSITIVE = {"Exp", "Sigmoid", "Softplus", "Cosh"}
_LIMITED = {"Acos", "Acosh", "Asin", "Atanh"}
_KEEPS_LOW = {"Add", "Sum", "Sub", "Where", "Max"}
Number = Affine | float | Condition | None


def mapped(
    call: Call, values: Sequence[Symbolic], dtype: Any = None
) -> tuple[list[Symbolic], Symbolic]:
    """The inputs side by side, and a result of which nothing is known by place but its rows."""
    run, op = call.run, call.node.op
    same, axes = run.broadcast(values)
    sized = any(value.sized or _varies(run, value) for value in same)
    signs = [_sign(run, value) for value in same]
    low = lowered(run, same) and op not in _KEEPS_LOW and dtype is not bool
    result = Symbolic(
        axes,
        np.dtype(dtype or values[0].dtype),
        sized=sized and op not in _BOUNDED,
        tainted=low or not all(clean(run, value) for value in same),
        wild=any(value.wild for value in same) or _leaves_numbers(call, same, signs),
        sign=_sign_of(call, same, signs),
    )
    if sized and result.of_rows:
        run.grows = True
    return same, result


def clean(run: Run, value: Symbolic) -> bool:
    """Whether it holds no constant as large as those of masks, but what masks add."""
    numbers = [number for number in run.seen(value) if not isinstance(number, Affine)]
    return not value.tainted and all(n <= LOW or abs(n) <= _LARGE for n in numbers)


def lowered(run: Run, values: Sequence[Symbolic]) -> bool:
    """Whether the constant of a mask is in one of them."""
    numbers = (number for value in values for number in run.seen(value))
    return any(value.low is not None for value in values) or any(
        not isinstance(number, Affine) and -np.inf < number <= LOW for number in numbers
    )


def _varies(run: Run, value: Symbolic) -> bool:
    """Whether it is known to hold several numbers, other than those of a mask."""
    if value.dtype.kind in "iub":
        return False
    numbers = {number for number in run.seen(value) if not isinstance(number, Affine)}
    return len(numbers) > 1 and not all(number in (0, 1) or number <= LOW for number in numbers)


def _sign(run: Run, value: Symbolic) -> int:
    numbers = run.seen(value)
    if not numbers or any(isinstance(number, Affine) and number.terms for number in numbers):
        return value.sign
    plain = [number.constant if isinstance(number, Affine) else number for number in numbers]
    if all(0 < number < np.inf for number in plain):
        return POSITIVE
    return NOT_NEGATIVE if all(0 <= number < np.inf for number in plain) else ANY


def _sign_of(call: Call, values: Sequence[Symbolic], signs: Sequence[int]) -> int:
    op = call.node.op
    if op in _POSITIVE:
        return NOT_NEGATIVE if values[0].hidden is not None or values[0].sized else POSITIVE
    if op in ("Abs", "Relu"):
        return NOT_NEGATIVE
    if op == "Mul" and call.node.inputs[0] == call.node.inputs[1]:
        return max(NOT_NEGATIVE, signs[0])
    if op == "Pow":
        power = _only(call.run, values[1])
        return max(signs[0], NOT_NEGATIVE if power is not None and power % 2 == 0 else ANY)
    if op == "Sqrt":
        return signs[0]
    if op in ("Add", "Sum"):
        return max(signs) if min(signs) >= NOT_NEGATIVE else ANY
    if op in ("Mul", "Where", "Min", "Reciprocal"):
        return min(signs[1:] if op == "Where" else signs)
    if op == "Div":
        return min(signs) if signs[1] == POSITIVE else ANY
    return max(signs) if op == "Max" else ANY


def _leaves_numbers(call: Call, values: Sequence[Symbolic], signs: Sequence[int]) -> bool:
    """Whether a result may be NaN or infinite at some length, while the inputs are finite."""
    op = call.node.op
    if op in ("Log", "Reciprocal"):
        return signs[0] != POSITIVE
    if op == "Sqrt":
        return signs[0] == ANY
    if op in ("Exp", "Pow") and any(value.sized for value in values):
        return True
    if op in ("Div", "Mod"):
        divisor = _only(call.run, values[1])
        return signs[1] != POSITIVE and not divisor
    if op == "Pow":
        power = _only(call.run, values[1])
        whole = power is not None and power >= 0 and power == int(power)
        return not whole and signs[0] != POSITIVE
    return op in _LIMITED


def _only(run: Run, value: Symbolic) -> float | None:
    """The one number that a tensor is known to hold."""
    numbers = set(run.seen(value))
    if len(numbers) != 1:
        return None
    (number,) = numbers
    return number if not isinstance(number, Affine) else number.fixed


@rule(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mean", "Mish",
    "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
def _plain(call: Call) -> list[Symbolic]:
    return [mapped(call, call.tensors())[1]]


@rule("BiasGelu", "FastGelu", "Gelu", "QuickGelu", domain=MICROSOFT)
def _plain_too(call: Call) -> list[Symbolic]:
    return [mapped(call, call.tensors())[1]]


@rule("Exp")
def _exp(call: Call) -> list[Symbolic]:
    result = mapped(call, [call.tensor(0)])[1]
    return [replace(result, zero=surely(call.tensor(0), "hidden"))]


@rule("IsNaN", "IsInf")
def _odd(call: Call) -> list[Symbolic]:
    if call.tensor(0).of_rows and call.tensor(0).wild:
        raise Unclear("it sees what a zero was made of")
    return [mapped(call, [call.tensor(0)], bool)[1]]


@rule("Identity")
def _identity(call: Call) -> list[Symbolic]:
    return [call.tensor(0)]


@rule("Neg")
def _neg(call: Call) -> list[Symbolic]:
    (value,), result = mapped(call, [call.tensor(0)])
    if value.read is not None:
        return [_computed(call.run, result, _negative, [value])]
    return [replace(result, zero=surely(value, "zero"))]


def _negative(number: Affine | float) -> Number:
    return number.times(-1) if isinstance(number, Affine) else -number


@rule("Cast")
def _cast(call: Call) -> list[Symbolic]:
    value, dtype = call.tensor(0), numpy_dtype(call.attributes["to"])
    result = replace(value, dtype=dtype)
    if value.dtype == dtype:
        return [result]
    if dtype == np.bool_:
        known = None if value.read is None else _cast_to_bool(value)
        return [replace(result, read=known, zero=None, hidden=None, low=None, convex=False)]
    wide = dtype.name in ("float32", "float64", "bfloat16")
    if value.read is None:
        if dtype.name not in _KEEPS_INFINITY:
            # Saturated, cut to a whole number, wrapped around.
            return [replace(result, zero=None, hidden=None, low=None, sign=ANY, tainted=True)]
        hidden = value.hidden
        tainted = value.tainted or (value.low is not None and not wide)
        low = value.low if wide else None
        return [replace(result, low=low, hidden=hidden, tainted=tainted)]
    if value.dtype.kind == "f" or "float" in value.dtype.name:
        if wide:
            return [_computed(call.run, result, lambda number: number, [value])]
        return [replace(result, read=None, zero=None, hidden=None, low=None, sign=ANY)]
    if dtype.kind in "iu" and value.dtype.kind in "iub":
        return [_computed(call.run, replace(result, read=None), lambda number: number, [value])]
    # As a float a number of places is exact up to some length only.
    computed = _computed(call.run, replace(result, read=None), _as_float, [value])
    return [replace(computed, sized=computed.read is None)]


def _as_float(number: Affine | float) -> Number:
    if not isinstance(number, Affine):
        return number
    exact = number.fixed is not None and abs(number.fixed) <= _EXACT
    return float(number.constant) if exact else None


def _cast_to_bool(value: Symbolic) -> Callable[[Index], Cases]:
    read = value.read
    assert read is not None  # the caller asked
    return lambda index: choice(holds(read(index)))


def _reader(
    values: Sequence[Symbolic], function: Callable[..., Number]
) -> Callable[[Index], Cases]:
    reads = [value.read for value in values]

    def read(index: Index) -> Cases:
        return by_case(function, *(item(index) for item in reads if item is not None))

    return read


def _computed(
    run: Run, result: Symbolic, function: Callable[..., Number], values: Sequence[Symbolic]
) -> Symbolic:
    """`result` with its numbers, where all `values` are known and the function has a formula."""
    if any(value.read is None for value in values):
        return result
    read = _reader(values, lambda *all_: _rounded(function(*all_), result.dtype))
    index = run.places(result)[0]
    try:
        numbers = [number for _, number in read(index)]
    except Unclear:
        return replace(result, read=None, sized=True)
    if any(isinstance(number, Affine) and not _fits(number, result.dtype) for number in numbers):
        return replace(result, read=None, sized=True)
    varies = any(isinstance(number, Affine) and number.terms for number in numbers)
    whole = result.dtype.kind in "iub"
    return replace(result, read=read, sized=result.sized or (varies and not whole))


def _rounded(number: Number, dtype: np.dtype[Any]) -> Number:
    """A float as a kernel has it: the result of one operation, rounded to its type."""
    if not isinstance(number, float) or dtype.kind in "iub":
        return number
    if dtype.name not in ("float16", "float32", "float64"):
        # bfloat16 keeps what masks and choices are made of.
        return number if number in (0.0, 1.0) or abs(number) == np.inf else None
    with np.errstate(over="ignore"):
        return float(dtype.type(number))


def _fits(number: Affine, dtype: np.dtype[Any]) -> bool:
    """Whether no length makes the number overflow."""
    if dtype.kind not in "iu":
        return True
    if dtype.kind == "u" and (number.fixed is None or number.fixed < 0):
        return False
    reach = sum(abs(count) for _, count in number.terms) * LONGEST + abs(number.constant)
    return bool(reach <= np.iinfo(dtype).max)


@rule("Add", "Sum")
def _add(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    if all(value.read is not None for value in same):
        return [_computed(call.run, result, lambda *all_: _total(all_), same)]
    zeros = [surely(value, "zero") for value in same]
    odd = any(value.wild and value.of_rows for value in same)
    # Infinity and minus infinity are no number.
    hidden = [] if odd else [surely(value, "hidden") for value in same]
    low = one_of([surely(v, "low") for v in same]) if lowered(call.run, same) else None
    return [replace(result, zero=_all_of(zeros), hidden=one_of(hidden), low=low)]


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
        return [_computed(call.run, result, _difference, same)]
    low = surely(one, "low") if lowered(call.run, [one]) else None
    tainted = result.tainted or lowered(call.run, [other])
    hidden = None if other.wild and other.of_rows else surely(one, "hidden")
    return [replace(result, hidden=hidden, low=low, tainted=tainted)]


def _difference(one: Affine | float, other: Affine | float) -> Number:
    minus = _negative(other)
    return _total([one, minus]) if isinstance(minus, Affine | float) else None


@rule("Mul")
def _mul(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    return [multiplied(call, same, result)]


def multiplied(call: Call, same: Sequence[Symbolic], result: Symbolic) -> Symbolic:
    """The product of two tensors side by side."""
    one, other = same
    if one.read is not None and other.read is not None:
        return _computed(call.run, result, _product, same)
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
    return value.read is not None and _sign(run, value) == POSITIVE


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
        return [_computed(call.run, result, partial(_quotient, call.run), [one, other])]
    (one, other), result = mapped(call, [one, other])
    positive = _positive(call.run, other)
    whole = positive or _sign(call.run, other) == POSITIVE
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
    return Affine(one.fixed // divisor) if one.fixed is not None else run.quotient(one, divisor)


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

    return [_computed(call.run, Symbolic(axes, one.dtype), rest, same)]


@rule("Max", "Min")
def _extreme(call: Call) -> list[Symbolic]:
    same, result = mapped(call, call.tensors())
    biggest = call.node.op == "Max"
    if len(same) == 2 and result.dtype.kind in "iu" and all(v.read is not None for v in same):
        reads = [value.read for value in same]

        def read(index: Index) -> Cases:
            one, other = (item(index) for item in reads if item is not None)
            return _larger(one, other) if biggest else _larger(other, one, least=True)

        return [_computed(call.run, result, lambda number: number, [replace(result, read=read)])]
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

    return [_computed(call.run, replace(result, sized=False), compared, same)]


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
    return [replace(result, zero=one_of(zeros) if call.node.op == "And" else _all_of(zeros))]


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
            _all_of([surely(one, what), surely(other, what)]) for what in ("zero", "hidden", "low")
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


def _all_of(marks: Sequence[Mark]) -> Mark:
    return lambda index: settled(Every(tuple(mark(index) for mark in marks)))
