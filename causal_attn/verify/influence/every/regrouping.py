"""Operators that order and group axes anew, and leave elements in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal_attn.verify.influence.every.affine import (
    Affine,
)
from causal_attn.verify.influence.every.run import Call, axis_of, rule
from causal_attn.verify.influence.every.shaping import axis_of_size
from causal_attn.verify.influence.every.symbolic import (
    Factor,
    Index,
    Symbolic,
    Unclear,
    flat,
    moved,
    width,
)

__all__ = ["transposed"]


@rule("Reshape")
def _reshape(call: Call) -> list[Symbolic]:
    value, run = call.tensor(0), call.run
    wanted = run.numbers(call.tensor(1))
    if not call.attributes.get("allowzero", 0):
        wanted = [
            width(value.axes[at]) if size.fixed == 0 else size for at, size in enumerate(wanted)
        ]
        if any(not s.terms == () and not run.at_most(Affine(1), s) for s in wanted):
            raise Unclear("a size may be zero, which stands for that of the input")
    sizes: list[Affine | None] = [None if size.fixed == -1 else size for size in wanted]
    return [_regrouped(value, sizes)]


@rule("Flatten")
def _flatten(call: Call) -> list[Symbolic]:
    value = call.tensor(0)
    axis = call.attributes.get("axis", 1)
    axis = axis if axis >= 0 else axis + len(value.axes)
    parts = value.axes[:axis], value.axes[axis:]
    axes = tuple(tuple(factor for one in part for factor in one) for part in parts)
    return [replace(value, axes=axes)]


@dataclass(slots=True)
class _Pieces:
    """Factors of a tensor while they are dealt out to other axes; one may be cut in two."""

    left: list[tuple[int, Factor]]

    def take(self, size: Affine, *, back: bool = False) -> list[tuple[int, Factor]]:
        """Pieces of this size in all, from the front or from the back."""
        taken: list[tuple[int, Factor]] = []
        while size.fixed != 1:
            if not self.left:
                raise Unclear("it groups elements in a way that depends on the length")
            source, factor = self.left.pop(-1 if back else 0)
            rest = _quotient(size, factor.size)
            if rest is None:
                wanted, whole = size.fixed, factor.size.fixed
                if not wanted or not whole or whole % wanted or factor.row is not None:
                    raise Unclear("it groups rows")
                other = Factor(Affine(whole // wanted))
                self.left.insert(len(self.left) if back else 0, (source, other))
                factor, rest = Factor(size), Affine(1)
            taken.append((source, factor))
            size = rest
        return taken[::-1] if back else taken


def _quotient(one: Affine, other: Affine) -> Affine | None:
    """``one / other`` where that is a whole number at every length."""
    counts = dict(other.terms)
    if not counts:
        divisor = other.constant
        numbers = [one.constant, *(count for _, count in one.terms)]
        if divisor < 1 or any(number % divisor for number in numbers):
            return None
        terms = tuple((name, count // divisor) for name, count in one.terms)
        return Affine(one.constant // divisor, terms)
    name, count = other.terms[0]
    times = dict(one.terms).get(name, 0) // count
    return Affine(times) if times > 0 and other.times(times) == one else None


def _regrouped(value: Symbolic, sizes: Sequence[Affine | None]) -> Symbolic:
    """`value` with its factors dealt out to axes of the given sizes; ``None``: what is left."""
    if sizes.count(None) > 1:
        raise Unclear("it leaves two sizes open")
    pieces = _Pieces([*enumerate(value.factors)])
    open_at = sizes.index(None) if None in sizes else len(sizes)
    front = [pieces.take(size) for size in sizes[:open_at] if size is not None]
    behind = [pieces.take(size, back=True) for size in sizes[:open_at:-1] if size is not None]
    middle = [pieces.left] if open_at < len(sizes) else []
    if not middle and pieces.left:
        raise Unclear("its sizes do not fit at every length")
    dealt = [*front, *middle, *behind[::-1]]
    order = [source for axis in dealt for source, _ in axis]
    parts = [factor for axis in dealt for _, factor in axis]

    def back(index: Index) -> Index:
        found = [Affine() for _ in value.factors]
        for source, factor, place in zip(order, parts, index, strict=True):
            # What is cut in two has fixed sizes.
            found[source] = found[source].times(factor.size.fixed or 1) + place
        return tuple(found)

    axes = [tuple(factor for _, factor in axis) for axis in dealt]
    return _joined(moved(value, axes, back))


def _joined(value: Symbolic) -> Symbolic:
    """The same with neighbouring fixed factors as one, where nothing is known by place."""
    if value.placed:
        return value
    axes = []
    for axis in value.axes:
        factors: list[Factor] = []
        for factor in axis:
            last = factors[-1] if factors else None
            if last and last.row is factor.row is None and _both_fixed(last, factor):
                factors[-1] = Factor(last.size.times(factor.size.constant))
            else:
                factors.append(factor)
        axes.append(tuple(factors))
    return replace(value, axes=tuple(axes))


def _both_fixed(one: Factor, other: Factor) -> bool:
    return one.size.fixed is not None and other.size.fixed is not None


@rule("Transpose")
def _transpose(call: Call) -> list[Symbolic]:
    value = call.tensor(0)
    order = call.attributes.get("perm") or range(len(value.axes))[::-1]
    return [transposed(value, list(order))]


def transposed(value: Symbolic, order: Sequence[int]) -> Symbolic:
    """`value` with its axes in another order."""
    axes = [value.axes[at] for at in order]
    own = flat(axes)
    target = {at: own[place] for place, at in enumerate(order)}
    old = [place for at in range(len(order)) for place in target[at]]
    return moved(value, axes, lambda index: tuple(index[place] for place in old))


@rule("Unsqueeze")
def _unsqueeze(call: Call) -> list[Symbolic]:
    value, wanted = call.tensor(0), call.numbers(1, "axes") or []
    rank = len(value.axes) + len(wanted)
    new = {at % rank for at in wanted}
    own = iter(value.axes)
    return [replace(value, axes=tuple(() if at in new else next(own) for at in range(rank)))]


@rule("Squeeze")
def _squeeze(call: Call) -> list[Symbolic]:
    value, wanted = call.tensor(0), call.numbers(1, "axes")
    if wanted is None:
        if any(factor.size.fixed is None for factor in value.factors):
            raise Unclear("it drops the axis of rows where there is one row")
        gone = {at for at, axis in enumerate(value.axes) if not axis}
    else:
        gone = {axis_of(value, at) for at in wanted}
    if any(value.axes[at] for at in gone):
        raise Unclear("it drops an axis that is not of size one")
    kept = tuple(axis for at, axis in enumerate(value.axes) if at not in gone)
    return [replace(value, axes=kept)]


@rule("Expand")
def _expand(call: Call) -> list[Symbolic]:
    axes = tuple(axis_of_size(size) for size in call.run.numbers(call.tensor(1)))
    shape = Symbolic(axes, np.dtype(np.float32))
    (value, _), wide = call.run.broadcast([call.tensor(0), shape])
    return [replace(value, axes=wide)]
