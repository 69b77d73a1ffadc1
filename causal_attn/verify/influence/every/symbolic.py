"""A tensor of any length: its sizes, the rows it is of, and what its elements are, as formulas.

Sizes are formulas in the number of new tokens and of the past. An axis is a list of *factors*, so
that heads folded into rows are still heads and rows. A factor may be one of rows: then an element
is computed from positions up to the factor's offset plus the element's place along it, or up to
the largest of these where it has several. A tensor without such factors is computed from none.

What is known of elements is a function of their place, one formula for each factor: numbers by
cases, or where they are surely zero, surely ``-inf``, or have a large negative constant added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from causal_attn.verify.influence.every.affine import (
    FALSE,
    TRUE,
    Affine,
    Condition,
    Every,
    Some,
    equal,
    negated,
    settled,
)
from causal_attn.verify.influence.origin import ANY

__all__ = [
    "LOW",
    "MOST_CASES",
    "Axis",
    "Cases",
    "Factor",
    "Index",
    "Mark",
    "Read",
    "Symbolic",
    "Unclear",
    "by_case",
    "choice",
    "flat",
    "holds",
    "moved",
    "one_of",
    "surely",
    "width",
]

LOW = -1e30
"""A constant at least as low as this hides under every score that the proof of one call allows."""
MOST_CASES = 24


class Unclear(Exception):
    """Nothing can be said of a tensor at every length; the message says why."""


Index = tuple[Affine, ...]
Cases = tuple[tuple[Condition, "Affine | float"], ...]
"""A number by cases of which one holds; conditions are 0 and 1."""
Read = Callable[[Index], Cases]
Mark = Callable[[Index], Condition]


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of an axis.

    Attributes:
        size: How many places it has.
        row: Position of its first place, where its places are rows.
    """

    size: Affine
    row: Affine | None = None


Axis = tuple[Factor, ...]
"""Factors from the slowest to the fastest; none where the size is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbolic:
    """A tensor at every length; see the module.

    Attributes:
        axes: Its axes.
        dtype: Element type.
        read: The numbers, where they are known.
        zero: Where they are surely zero.
        hidden: Where they are surely ``-inf``.
        low: Where a constant below `LOW` was added to data.
        sized: Numbers that differ with places or lengths are in it, so that its size may too.
        reach: Of floats: within ``2**-reach`` and ``2**reach`` times data of size one.
        convex: Weights of a softmax.
        tainted: A constant as large as those of masks is in it, where `low` does not say so.
        wild: It may hold NaN or infinity while inputs are finite, at some length.
        sign: `POSITIVE`, `NOT_NEGATIVE` or `ANY`, of `causal_attn.verify.influence.origin`.
    """

    axes: tuple[Axis, ...]
    dtype: np.dtype[Any]
    read: Read | None = None
    zero: Mark | None = None
    hidden: Mark | None = None
    low: Mark | None = None
    sized: bool = False
    reach: float = 0.0
    convex: bool = False
    tainted: bool = False
    wild: bool = False
    sign: int = ANY

    @property
    def factors(self) -> tuple[Factor, ...]:
        """All factors in order."""
        return tuple(factor for axis in self.axes for factor in axis)

    @property
    def of_rows(self) -> bool:
        """Whether positions reach it."""
        return any(factor.row is not None for factor in self.factors)

    @property
    def placed(self) -> bool:
        """Whether anything is known by place, so that places count."""
        return any(mark is not None for mark in (self.read, self.zero, self.hidden, self.low))


def width(axis: Axis) -> Affine:
    """The size of an axis.

    Raises:
        Unclear: It is a product of lengths.
    """
    total = Affine(1)
    for factor in axis:
        if (known := factor.size.fixed) is not None:
            total = total.times(known)
        elif (known := total.fixed) is not None:
            total = factor.size.times(known)
        else:
            raise Unclear("an axis is a product of lengths")
    return total


def flat(axes: Sequence[Axis]) -> list[range]:
    """For each axis, which places of an index are its own."""
    ranges, start = [], 0
    for axis in axes:
        ranges.append(range(start, start + len(axis)))
        start += len(axis)
    return ranges


def moved(value: Symbolic, axes: Sequence[Axis], back: Callable[[Index], Index]) -> Symbolic:
    """`value` with other axes; `back` finds where an element came from."""

    def via(mark: Callable[[Index], Any] | None) -> Any:
        return None if mark is None else lambda index: mark(back(index))

    return replace(
        value, axes=tuple(axes), read=via(value.read), zero=via(value.zero),
        hidden=via(value.hidden), low=via(value.low),
    )  # fmt: skip


def surely(value: Symbolic, what: str) -> Mark:
    """Where `value` is surely ``zero``, ``hidden`` or ``low``; known numbers say so themselves."""
    read = value.read
    if read is not None:
        tests: dict[str, Callable[[float], bool]] = {
            "zero": lambda x: x == 0, "hidden": lambda x: x == -np.inf,
            "low": lambda x: -np.inf < x <= LOW,
        }  # fmt: skip
        test = tests[what]

        def found(index: Index) -> Condition:
            return settled(Some(tuple(
                Every((condition, _test(number, test))) for condition, number in read(index)
            )))  # fmt: skip

        return found
    return getattr(value, what) or (lambda _: FALSE)


def one_of(marks: Sequence[Mark]) -> Mark:
    """Where one of them says so."""
    return lambda index: settled(Some(tuple(mark(index) for mark in marks)))


def _test(number: Affine | float, test: Callable[[float], bool]) -> Condition:
    if not isinstance(number, Affine):
        return TRUE if test(number) else FALSE
    if number.fixed is not None:
        return TRUE if test(number.fixed) else FALSE
    # Of numbers that vary only zero is asked for.
    return equal(number, Affine()) if test(0) else FALSE


def holds(cases: Cases) -> Condition:
    """Where a number is not zero: where a condition is true."""
    none = [Every((condition, _test(number, lambda x: x == 0))) for condition, number in cases]
    return settled(negated(Some(tuple(none))))


def choice(condition: Condition) -> Cases:
    """A condition as a number."""
    condition = settled(condition)
    cases = ((condition, Affine(1)), (settled(negated(condition)), Affine()))
    return tuple(case for case in cases if case[0] != FALSE)


def by_case(function: Callable[..., Affine | float | Condition | None], *numbers: Cases) -> Cases:
    """`function` of numbers, case by case.

    Raises:
        Unclear: There are too many cases, or the function knows no formula for one.
    """
    found: list[tuple[Condition, tuple[Affine | float, ...]]] = [(TRUE, ())]
    for cases in numbers:
        found = [
            (condition, (*chosen, number))
            for earlier, chosen in found
            for own, number in cases
            if (condition := settled(Every((earlier, own)))) != FALSE
        ]
        if len(found) > MOST_CASES:
            raise Unclear("it has too many cases")
    result: list[tuple[Condition, Affine | float]] = []
    for condition, chosen in found:
        value = function(*chosen)
        if value is None:
            raise Unclear("it has no formula")
        if isinstance(value, Affine | float | int):
            result.append((condition, value))
        else:
            result += [(settled(Every((condition, own))), number) for own, number in choice(value)]
    return tuple(case for case in result if case[0] != FALSE)
