"""What a rule starts from whose elements are made of those at the same place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from causal_attn.verify.influence.every.affine import (
    Affine,
    Condition,
    Every,
    settled,
)
from causal_attn.verify.influence.every.run import LONGEST, Call, Run
from causal_attn.verify.influence.every.symbolic import (
    LOW,
    Cases,
    Index,
    Mark,
    Symbolic,
    Unclear,
    by_case,
)
from causal_attn.verify.influence.origin import ANY, NOT_NEGATIVE, POSITIVE

__all__ = [
    "Number",
    "all_of",
    "clean",
    "computed",
    "lowered",
    "mapped",
    "only",
    "overflows",
    "reach_of",
    "reader",
    "sign_of",
]

_BOUNDED = {"Sin", "Cos", "Tanh", "Sigmoid", "Erf"}
_LARGE = 1e6
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
    signs = [sign_of(run, value) for value in same]
    reach = _reach_of_result(run, op, same)
    low = lowered(run, same) and op not in _KEEPS_LOW and dtype is not bool
    result = Symbolic(
        axes,
        np.dtype(dtype or values[0].dtype),
        sized=sized and op not in _BOUNDED,
        reach=reach if op not in _BOUNDED and (sized or not any(v.of_rows for v in same)) else 0.0,
        tainted=low or not all(clean(run, value) for value in same),
        wild=any(value.wild for value in same)
        or _leaves_numbers(call, same, signs)
        or (sized and overflows(reach, np.dtype(values[0].dtype))),
        sign=_result_sign(call, same, signs),
    )
    if sized and result.of_rows:
        run.grows = True
    return same, result


def _reach_of_result(run: Run, op: str, values: Sequence[Symbolic]) -> float:
    reaches = [reach_of(run, value) for value in values]
    if op in ("Mul", "Div", "Pow", "Mod", "PRelu"):
        return sum(reaches)
    return float(np.logaddexp2.reduce(reaches))


def reach_of(run: Run, value: Symbolic) -> float:
    """Its `reach`, by its numbers where they are known; those of masks are not counted."""
    numbers = run.seen(value)
    if not numbers:
        return value.reach
    sizes = [0.0]
    for number in numbers:
        if isinstance(number, Affine):
            most = sum(abs(n) for _, n in number.terms) * LONGEST + abs(number.constant)
            sizes.append(math.log2(max(most, 1)))
        elif LOW < number < np.inf and number:
            sizes.append(abs(math.log2(abs(number))))
    return max(sizes)


def overflows(reach: float, dtype: np.dtype[Any]) -> bool:
    """Whether data of a size that is common may leave the range of `dtype`, for the length."""
    bits = np.finfo(dtype).maxexp if dtype.kind == "f" else 16 if "8" in dtype.name else 128
    return dtype.kind not in "iub" and reach > 0.75 * bits


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


def sign_of(run: Run, value: Symbolic) -> int:
    numbers = run.seen(value)
    if not numbers or any(isinstance(number, Affine) and number.terms for number in numbers):
        return value.sign
    plain = [number.constant if isinstance(number, Affine) else number for number in numbers]
    if all(0 < number < np.inf for number in plain):
        return POSITIVE
    return NOT_NEGATIVE if all(0 <= number < np.inf for number in plain) else ANY


def _result_sign(call: Call, values: Sequence[Symbolic], signs: Sequence[int]) -> int:
    op = call.node.op
    if op in _POSITIVE:
        return NOT_NEGATIVE if values[0].hidden is not None or values[0].sized else POSITIVE
    if op in ("Abs", "Relu"):
        return NOT_NEGATIVE
    if op == "Mul" and call.node.inputs[0] == call.node.inputs[1]:
        return max(NOT_NEGATIVE, signs[0])
    if op == "Pow":
        power = only(call.run, values[1])
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
        divisor = only(call.run, values[1])
        return signs[1] != POSITIVE and not divisor
    if op == "Pow":
        power = only(call.run, values[1])
        whole = power is not None and power >= 0 and power == int(power)
        return not whole and signs[0] != POSITIVE
    return op in _LIMITED


def only(run: Run, value: Symbolic) -> float | None:
    """The one number that a tensor is known to hold."""
    numbers = set(run.seen(value))
    if len(numbers) != 1:
        return None
    (number,) = numbers
    return number if not isinstance(number, Affine) else number.fixed


def reader(
    values: Sequence[Symbolic], function: Callable[..., Number]
) -> Callable[[Index], Cases]:
    reads = [value.read for value in values]

    def read(index: Index) -> Cases:
        return by_case(function, *(item(index) for item in reads if item is not None))

    return read


def computed(
    run: Run, result: Symbolic, function: Callable[..., Number], values: Sequence[Symbolic]
) -> Symbolic:
    """`result` with its numbers, where all `values` are known and the function has a formula."""
    if any(value.read is None for value in values):
        return result
    read = reader(values, lambda *all_: _rounded(function(*all_), result.dtype))
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


def all_of(marks: Sequence[Mark]) -> Mark:
    return lambda index: settled(Every(tuple(mark(index) for mark in marks)))
