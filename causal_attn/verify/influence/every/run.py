"""One evaluation of a graph at every length: sizes, questions to the solver, rules by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from causal_attn.verify.influence.every.affine import (
    FALSE,
    Affine,
    AtMost,
    Condition,
    Undecidable,
    equal,
    impossible,
    less,
)
from causal_attn.verify.influence.every.symbolic import (
    Axis,
    Cases,
    Factor,
    Index,
    Mark,
    Symbolic,
    Unclear,
    flat,
    moved,
)
from causal_attn.verify.influence.graph import Node

__all__ = [
    "LONGEST",
    "MAPS",
    "PAST",
    "RULES",
    "TOKENS",
    "Call",
    "Run",
    "axis_of",
    "rule",
    "silent",
]

TOKENS, PAST = Affine.of("tokens"), Affine.of("past")
LONGEST = 1 << 24
"""Positions up to which places are numbers of every dtype that graphs count in."""

_MOST_READ = 16


@dataclass(slots=True)
class Run:
    """What is assumed and seen.

    Attributes:
        past: Rows of the past before the new tokens: none, a number, or as many as there are.
        facts: What holds of all variables.
        finite: A large constant that is finite was taken to hide.
        grows: The size of scores may follow the length.
    """

    past: Affine
    least_past: int
    facts: list[Condition] = field(default_factory=list)
    finite: bool = False
    grows: bool = False
    _names: int = 0
    _quotients: dict[tuple[Affine, int], Affine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Say what sizes can be."""
        self.facts += [
            AtMost(Affine(1) - TOKENS),
            AtMost(Affine(self.least_past) - PAST),
            AtMost(TOKENS + PAST - LONGEST),
        ]

    @property
    def total(self) -> Affine:
        """Positions of the past and the new tokens."""
        return self.past + TOKENS

    def never(self, *conditions: Condition) -> bool:
        """Whether no length and no place satisfies all of `conditions`."""
        try:
            return impossible([*self.facts, *conditions])
        except Undecidable:
            return False

    def at_most(self, one: Affine, other: Affine) -> bool:
        """Whether ``one <= other`` at every length."""
        return self.never(less(other, one))

    def fresh(self) -> Affine:
        """A variable that is nowhere else."""
        self._names += 1
        return Affine.of(f"x{self._names}")

    def seen(self, value: Symbolic) -> list[Affine | float]:
        """Every number that a known tensor may hold."""
        read = value.read
        return [] if read is None else [number for _, number in read(self.places(value)[0])]

    def places(self, value: Symbolic) -> tuple[Index, list[Condition]]:
        """A place of `value` in variables, and that they stay inside of it."""
        index = tuple(self.fresh() for _ in value.factors)
        inside = [
            condition
            for place, factor in zip(index, value.factors, strict=True)
            for condition in (AtMost(place.times(-1)), less(place, factor.size))
        ]
        return index, inside

    def quotient(self, number: Affine, divisor: int) -> Affine:
        """The quotient of `number` by a positive `divisor`, rounded down: at most `LONGEST`."""
        key = number, divisor
        if key not in self._quotients:
            self._quotients[key] = made = self.fresh()
            rest = number - made.times(divisor)
            self.facts += [AtMost(rest.times(-1)), less(rest, Affine(divisor))]
        return self._quotients[key]

    def join(self, rows: Iterable[Affine | None]) -> Affine | None:
        """The offset under which rows with any of these offsets lie."""
        largest: Affine | None = None
        for row in rows:
            if row is None or row == largest:
                continue
            if largest is None or self.at_most(largest, row):
                largest = row
            elif not self.at_most(row, largest):
                raise Unclear("rows of two kinds meet")
        return largest

    def numbers(self, value: Symbolic) -> list[Affine]:
        """The elements of a small tensor of whole numbers, in order, each one formula."""
        sizes = [factor.size.fixed for factor in value.factors]
        if value.read is None or None in sizes:
            raise Unclear("sizes or places depend on data")
        found: list[Affine] = []
        for place in np.ndindex(*[size or 0 for size in sizes]):
            cases = value.read(tuple(Affine(at) for at in place))
            if len(cases) != 1 or not isinstance(cases[0][1], Affine):
                raise Unclear("a size depends on how long the input is, case by case")
            found.append(cases[0][1])
            if len(found) > _MOST_READ:
                raise Unclear("it is a long list of numbers")
        return found

    def constant(self, array: Any) -> Symbolic:
        """A stored tensor; its numbers are kept where they are few."""
        array = np.asarray(array)
        axes = tuple(() if size == 1 else (Factor(Affine(size)),) for size in array.shape)
        value = Symbolic(axes, array.dtype)
        if not array.size or array.dtype.kind not in "biuf":
            return value
        if array.dtype.kind == "f":
            odd = np.isnan(array).any() or np.isposinf(array).any()
            large = np.abs(array[np.isfinite(array)], dtype=np.float64).max(initial=0) > 1e6
            sizes = np.abs(array[np.isfinite(array) & (array != 0)], dtype=np.float64)
            value = replace(
                value,
                reach=float(np.abs(np.log2(sizes)).max(initial=0)),
                wild=bool(odd),
                tainted=bool(large and (array != array.flat[0]).any()),
            )
        first = array.reshape(-1)[0]
        if (array == first).all():
            only = _number(first)
            return replace(value, read=lambda _: only)
        squeezed = array.reshape([size for size in array.shape if size != 1])
        if squeezed.ndim != 1 or array.size > _MOST_READ or array.dtype.kind == "f":
            return value

        def read(index: Index) -> Cases:
            (place,) = index
            if place.fixed is not None:
                return _number(squeezed[place.fixed])
            return tuple(
                (equal(place, Affine(at)), _number(item)[0][1]) for at, item in enumerate(squeezed)
            )

        return replace(value, read=read)

    def vector(self, numbers: Sequence[Affine]) -> Symbolic:
        """Whole numbers, one after the other."""
        axis = (Factor(Affine(len(numbers))),) if len(numbers) != 1 else ()

        def read(index: Index) -> Cases:
            if not index or index[0].fixed is not None:
                return ((_TRUE, numbers[(index[0].fixed or 0) if index else 0]),)
            return tuple((equal(index[0], Affine(at)), item) for at, item in enumerate(numbers))

        return Symbolic((axis,), np.dtype(np.int64), read=read)

    def conform(self, values: Sequence[Symbolic]) -> list[Symbolic]:
        """`values` of one rank with the same factors along each axis that is not of size one."""
        rank = max(len(value.axes) for value in values)
        padded = [_padded(value, rank) for value in values]
        for at in range(rank):
            while True:
                axes = [value.axes[at] for value in padded if value.axes[at]]
                cut = self._cut(axes)
                if cut is None:
                    break
                padded = [_split(value, at, *cut) if value.axes[at] else value for value in padded]
        return padded

    def _cut(self, axes: Sequence[Axis]) -> tuple[int, int] | None:
        """The first factor to be split and the size of its slower part; ``None``: they agree."""
        for place in range(max((len(axis) for axis in axes), default=0)):
            if any(place >= len(axis) for axis in axes):
                raise Unclear("two sizes are not the same at every length")
            sizes = {axis[place].size for axis in axes}
            if len(sizes) == 1:
                continue
            fixed = [size.fixed for size in sizes if size.fixed is not None]
            if len(fixed) != len(sizes):
                raise Unclear("two sizes are not the same at every length")
            small = min(fixed)
            if small < 2 or any(size % small for size in fixed):
                raise Unclear("two sizes are not the same at every length")
            return place, small
        return None

    def broadcast(self, values: Sequence[Symbolic]) -> tuple[list[Symbolic], tuple[Axis, ...]]:
        """`values` with the same axes, and those axes with the rows of all of them."""
        same = self.conform(values)
        axes: list[Axis] = []
        for at in range(len(same[0].axes)):
            parts = [value.axes[at] for value in same if value.axes[at]]
            axes.append(tuple(
                Factor(items[0].size, self.join(item.row for item in items))
                for items in zip(*parts, strict=True)
            ))  # fmt: skip
        return [_spread(value, axes) for value in same], tuple(axes)


_TRUE = AtMost(Affine(0))


def _number(item: Any) -> Cases:
    number = item.item()
    return ((_TRUE, Affine(int(number)) if isinstance(number, bool | int) else float(number)),)


def _padded(value: Symbolic, rank: int) -> Symbolic:
    missing: tuple[Axis, ...] = ((),) * (rank - len(value.axes))
    return replace(value, axes=missing + value.axes)


def _split(value: Symbolic, at: int, place: int, slow: int) -> Symbolic:
    """`value` with one factor of fixed size as two, the slower one of size `slow`."""
    axis = value.axes[at]
    size = axis[place].size.fixed
    if size is None or size == slow:
        return value
    if axis[place].row is not None:
        raise Unclear("rows are split into groups")
    fast = size // slow
    parts = (Factor(Affine(slow)), Factor(Affine(fast)))
    start = flat(value.axes)[at].start + place

    def back(index: Index) -> Index:
        one = index[start].times(fast) + index[start + 1]
        return (*index[:start], one, *index[start + 2 :])

    axes = list(value.axes)
    axes[at] = (*axis[:place], *parts, *axis[place + 1 :])
    return moved(value, axes, back)


def _spread(value: Symbolic, axes: Sequence[Axis]) -> Symbolic:
    """`value` along `axes`: where it has one place all places are that one."""
    kept = [
        place
        for own, places in zip(value.axes, flat(axes), strict=True)
        if own
        for place in places
    ]
    return moved(value, axes, lambda index: tuple(index[place] for place in kept))


@dataclass(slots=True)
class Call:
    """A node and its inputs.

    Attributes:
        run: What holds everywhere.
        node: The node.
        given: Its inputs; ``None`` where one is left out.
        attributes: Of the node.
        opset: Of its domain.
    """

    run: Run
    node: Node
    given: list[Symbolic | None]
    attributes: dict[str, Any]
    opset: int

    def tensor(self, at: int) -> Symbolic:
        """The input at `at`."""
        value = self.optional(at)
        if value is None:
            raise Unclear(f"its input {at} is left out")
        return value

    def optional(self, at: int) -> Symbolic | None:
        """The input at `at`, or ``None``."""
        return self.given[at] if at < len(self.given) else None

    def tensors(self) -> list[Symbolic]:
        """All inputs that are given."""
        return [value for value in self.given if value is not None]

    def numbers(self, at: int, name: str) -> list[int] | None:
        """Fixed whole numbers from an input, or from the attribute of older opsets."""
        value = self.optional(at)
        if value is None:
            found = self.attributes.get(name)
            return None if found is None else [int(item) for item in np.atleast_1d(found)]
        fixed = [number.fixed for number in self.run.numbers(value)]
        if any(number is None for number in fixed):
            raise Unclear(f"`{name}` depends on the length")
        return [number for number in fixed if number is not None]


def silent(value: Symbolic, mark: Mark) -> Mark:
    """`mark`, unless what is multiplied by zero may be no number."""
    return (lambda _: FALSE) if value.wild and value.of_rows else mark


def axis_of(value: Symbolic, axis: int) -> int:
    """The axis counted from the front."""
    rank = len(value.axes)
    if not -rank <= axis < rank:
        raise Unclear("it names an axis that is not there")
    return axis % rank


Rule = Callable[[Call], Sequence[Symbolic]]
RULES: dict[tuple[str, str], Rule] = {}
MAPS: set[tuple[str, str]] = set()
"""Operators that make each element of the result of those at the same place."""


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register a rule."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(((domain, name) for name in names), function))
        return function

    return register
