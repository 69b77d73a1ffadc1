"""Conditions on whole numbers, and whether they can hold together.

Conditions are inequalities between sums of integer multiples of variables, joined by *and* or
*or*. Whether some can hold at once is decided by Fourier and Motzkin's elimination, with bounds
rounded to whole numbers: what it calls impossible is impossible. The reverse does not hold, so
that a mask which it does not settle is not proved, and nothing else follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

__all__ = [
    "FALSE",
    "TRUE",
    "Affine",
    "AtMost",
    "Condition",
    "Every",
    "Some",
    "Undecidable",
    "equal",
    "impossible",
    "less",
    "negated",
    "settled",
]

_MOST_BRANCHES = 400
_MOST_BOUNDS = 200
"""Beyond these a question is left open: a mask that anyone wrote by hand needs a dozen."""


class Undecidable(Exception):
    """A question is larger than what is looked at."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A sum of integer multiples of variables, and a constant."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, name: str) -> Self:
        """The variable itself."""
        return cls(0, ((name, 1),))

    def __add__(self, other: Affine | int) -> Affine:
        """The sum."""
        if isinstance(other, int):
            return Affine(self.constant + other, self.terms)
        total = dict(self.terms)
        for name, count in other.terms:
            total[name] = total.get(name, 0) + count
        kept = tuple(sorted((name, count) for name, count in total.items() if count))
        return Affine(self.constant + other.constant, kept)

    def __sub__(self, other: Affine | int) -> Affine:
        """The difference."""
        return self + (-other if isinstance(other, int) else other.times(-1))

    def times(self, factor: int) -> Affine:
        """A multiple."""
        terms = tuple((name, count * factor) for name, count in self.terms) if factor else ()
        return Affine(self.constant * factor, terms)

    @property
    def fixed(self) -> int | None:
        """The number that it is, if no variable is in it."""
        return None if self.terms else self.constant


@dataclass(frozen=True, slots=True)
class AtMost:
    """``affine <= 0``."""

    affine: Affine


@dataclass(frozen=True, slots=True)
class Every:
    """Every of the parts hold; without any, that is true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """One of the parts holds; without any, that is false."""

    parts: tuple[Condition, ...]


Condition = AtMost | Every | Some
TRUE, FALSE = Every(()), Some(())


def less(one: Affine, other: Affine) -> Condition:
    """``one < other``."""
    return AtMost(one - other + 1)


def equal(one: Affine, other: Affine) -> Condition:
    """``one == other``."""
    return Every((AtMost(one - other), AtMost(other - one)))


def negated(condition: Condition) -> Condition:
    """What holds where `condition` does not."""
    if isinstance(condition, AtMost):
        return AtMost(Affine(1) - condition.affine)
    parts = tuple(negated(part) for part in condition.parts)
    return Some(parts) if isinstance(condition, Every) else Every(parts)


def impossible(conditions: Iterable[Condition]) -> bool:
    """Whether no whole numbers satisfy all of `conditions`, for certain.

    Raises:
        Undecidable: There are too many cases.
    """
    return _Search().closed([*conditions], [])


class _Search:
    def __init__(self) -> None:
        self.branches = 0

    def closed(self, waiting: list[Condition], bounds: list[Affine]) -> bool:
        """Whether every way to satisfy `waiting` contradicts itself, or `bounds`."""
        waiting, bounds = [*waiting], [*bounds]
        choices: list[Some] = []
        while waiting:
            condition = waiting.pop()
            if isinstance(condition, AtMost):
                bounds.append(condition.affine)
            elif isinstance(condition, Every):
                waiting.extend(condition.parts)
            elif not condition.parts:
                return True
            else:
                choices.append(condition)
        if _contradict(bounds):
            return True
        if not choices:
            return False
        self.branches += 1
        if self.branches > _MOST_BRANCHES:
            raise Undecidable
        first, *others = sorted(choices, key=lambda choice: len(choice.parts))
        return all(self.closed([part, *others], bounds) for part in first.parts)


def _contradict(bounds: Sequence[Affine]) -> bool:
    """Whether no whole numbers satisfy ``affine <= 0`` for each of `bounds`, for certain."""
    left = {_tight(bound) for bound in bounds}
    while True:
        if any(bound.fixed is not None and bound.constant > 0 for bound in left):
            return True
        left = {bound for bound in left if bound.fixed is None}
        if not left:
            return False
        if len(left) > _MOST_BOUNDS:
            raise Undecidable
        name = _cheapest(left)
        above = [(bound, count) for bound in left if (count := _count(bound, name)) > 0]
        below = [(bound, -count) for bound in left if (count := _count(bound, name)) < 0]
        left = {bound for bound in left if not _count(bound, name)}
        left |= {
            _tight(upper.times(n) + lower.times(m)) for upper, m in above for lower, n in below
        }


def _count(bound: Affine, name: str) -> int:
    return next((count for item, count in bound.terms if item == name), 0)


def _cheapest(bounds: Iterable[Affine]) -> str:
    """The variable whose elimination makes the fewest new bounds."""
    ups: dict[str, int] = {}
    downs: dict[str, int] = {}
    for bound in bounds:
        for name, count in bound.terms:
            side = ups if count > 0 else downs
            side[name] = side.get(name, 0) + 1
    names = sorted({*ups, *downs})
    return min(names, key=lambda name: ups.get(name, 0) * downs.get(name, 0))


def _tight(bound: Affine) -> Affine:
    """The same for whole numbers: divided by what all multiples share, the constant rounded up."""
    shared = math.gcd(*(count for _, count in bound.terms))
    if shared <= 1:
        return bound
    terms = tuple((name, count // shared) for name, count in bound.terms)
    return Affine(-(-bound.constant // shared), terms)


def settled(condition: Condition) -> Condition:
    """The same with what is true or false by itself left out."""
    if isinstance(condition, AtMost):
        fixed = condition.affine.fixed
        return condition if fixed is None else TRUE if fixed <= 0 else FALSE
    parts = [settled(part) for part in condition.parts]
    ends, idle = (FALSE, TRUE) if isinstance(condition, Every) else (TRUE, FALSE)
    if ends in parts:
        return ends
    kept = tuple(part for part in parts if part != idle)
    if len(kept) == 1:
        return kept[0]
    return Every(kept) if isinstance(condition, Every) else Some(kept)
