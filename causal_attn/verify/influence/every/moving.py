"""Operators that put elements at other places."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.every.affine import (
    FALSE,
    Affine,
    AtMost,
    Condition,
    Every,
    Some,
    less,
    negated,
    settled,
)
from causal_attn.verify.influence.every.run import LONGEST, Call, Run, axis_of, rule
from causal_attn.verify.influence.every.symbolic import (
    Axis,
    Cases,
    Factor,
    Index,
    Mark,
    Read,
    Symbolic,
    Unclear,
    flat,
    moved,
    surely,
    width,
)

__all__ = ["appended"]

_END = 1 << 31
"""From here on the end of a slice is the end of the axis."""


@rule("Concat")
def _concat(call: Call) -> list[Symbolic]:
    values = call.tensors()
    axis = axis_of(values[0], call.attributes["axis"])
    result = values[0]
    for value in values[1:]:
        result = appended(call.run, result, value, axis)
    return [result]


def appended(run: Run, one: Symbolic, other: Symbolic, axis: int) -> Symbolic:
    """`other` behind `one` along `axis`."""
    sizes = [width(value.axes[axis]) for value in (one, other)]
    if any(len(value.axes[axis]) > 1 for value in (one, other)):
        raise Unclear("it appends to rows of several heads")
    bare = [_without(value, axis) for value in (one, other)]
    axes = run.broadcast(bare)[1]
    if any(
        _sizes(own) != _sizes(both)
        for value in bare
        for own, both in zip(value.axes, axes, strict=True)
    ):
        raise Unclear("it appends tensors of other sizes")
    # A row may say that it is of a later position than it is, never of an earlier one.
    rows = [value.axes[axis][0].row if value.axes[axis] else None for value in (one, other)]
    behind = None if rows[1] is None else rows[1] - sizes[0]
    added = Factor(sizes[0] + sizes[1], run.join([rows[0], behind]))
    at = flat(axes)[axis].start
    edge = sizes[0]

    def split(index: Index) -> tuple[Condition, Index, Index]:
        place, rest = index[at], (*index[:at], *index[at + 1 :])
        ways = []
        for value, own in ((one, place), (other, place - edge)):
            inner = (own,) if value.axes[axis] else ()
            ways.append((*rest[:at], *inner, *rest[at:]))
        return settled(less(place, edge)), ways[0], ways[1]

    def mark(what: str) -> Mark:
        marks = surely(one, what), surely(other, what)

        def found(index: Index) -> Condition:
            first, before, after = split(index)
            ways = (
                Every((first, marks[0](before))) if first != FALSE else FALSE,
                Every((negated(first), marks[1](after))) if first != _TRUE else FALSE,
            )
            return settled(Some(ways))

        return found

    made = list(axes)
    made[axis] = (added,)
    result = Symbolic(
        tuple(made), one.dtype, sized=one.sized or other.sized, wild=one.wild or other.wild,
        tainted=one.tainted or other.tainted, sign=min(one.sign, other.sign),
        reach=max(one.reach, other.reach),
    )  # fmt: skip
    first_read, second_read = one.read, other.read
    if first_read is not None and second_read is not None:

        def read(index: Index, one: Read = first_read, other: Read = second_read) -> Cases:
            first, before, after = split(index)
            if first == _TRUE:
                return one(before)
            if first == FALSE:
                return other(after)
            ways = ((first, one(before)), (negated(first), other(after)))
            cases = [(settled(Every((way, c))), n) for way, own in ways for c, n in own]
            return tuple(case for case in cases if case[0] != FALSE)

        return replace(result, read=read)
    # What is appended to scores has no part in a mask.
    tainted = result.tainted or one.low is not None or other.low is not None
    return replace(result, zero=mark("zero"), hidden=mark("hidden"), tainted=tainted)


_TRUE: Condition = Every(())


def _sizes(axis: Axis) -> list[Affine]:
    return [factor.size for factor in axis]


def _without(value: Symbolic, axis: int) -> Symbolic:
    """The same with `axis` of size one, for its sizes alone."""
    axes = tuple(() if at == axis else own for at, own in enumerate(value.axes))
    return Symbolic(axes, value.dtype)


@rule("Slice")
def _slice(call: Call) -> list[Symbolic]:
    value, run = call.tensor(0), call.run
    if call.opset < 10:
        raise Unclear("its operator is of an old version")
    starts, ends = run.numbers(call.tensor(1)), run.numbers(call.tensor(2))
    axes = call.numbers(3, "axes") or list(range(len(starts)))
    steps = call.numbers(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step != 1:
            raise Unclear("it takes every so many of the rows, or turns them around")
        value = _cut(run, value, axis_of(value, axis), start, end)
    return [value]


def _cut(run: Run, value: Symbolic, axis: int, start: Affine, end: Affine) -> Symbolic:
    size = width(value.axes[axis])
    start, end = _clamped(run, start, size), _clamped(run, end, size)
    length = end - start
    if length == size:
        return value
    if not run.at_most(Affine(), length):
        raise Unclear("whether anything is left depends on the length")
    return _window(value, axis, start, length)


def _clamped(run: Run, place: Affine, size: Affine) -> Affine:
    """A place counted from the front, and no further than the end."""
    if place.fixed is not None and place.fixed >= _END:
        return size
    if run.never(AtMost(Affine() - place)):
        place = place + size
        if run.at_most(place, Affine()):
            return Affine()
        if not run.at_most(Affine(), place):
            raise Unclear("where it begins or ends depends on the length")
    elif not run.at_most(Affine(), place):
        raise Unclear("where it begins or ends depends on the length")
    if run.at_most(place, size):
        return place
    if run.at_most(size, place):
        return size
    raise Unclear("it ends where a table does, at a length that is not every one")


def _window(value: Symbolic, axis: int, start: Affine, length: Affine) -> Symbolic:
    own = value.axes[axis]
    if len(own) != 1:
        raise Unclear("it cuts rows of several heads")
    row = own[0].row
    at = flat(value.axes)[axis].start
    single = length.fixed == 1
    if single and row is not None:
        raise Unclear("it picks one row")
    new: Axis = () if single else (Factor(length, None if row is None else row + start),)
    axes = list(value.axes)
    axes[axis] = new

    def back(index: Index) -> Index:
        place = start if single else index[at] + start
        return (*index[:at], place, *index[at if single else at + 1 :])

    return moved(value, axes, back)


@rule("Split")
def _split(call: Call) -> list[Symbolic]:
    value, run = call.tensor(0), call.run
    axis = axis_of(value, call.attributes.get("axis", 0))
    size = width(value.axes[axis])
    given = call.optional(1)
    if given is not None:
        sizes = run.numbers(given)
    elif (listed := call.attributes.get("split")) is not None:
        sizes = [Affine(int(item)) for item in listed]
    else:
        count = len(call.node.outputs)
        if size.fixed is None or size.fixed % count:
            raise Unclear("it splits rows into parts")
        sizes = [Affine(size.fixed // count)] * count
    parts, start = [], Affine()
    for length in sizes:
        parts.append(value if length == size else _window(value, axis, start, length))
        start = start + length
    if start != size:
        raise Unclear("its parts are not all of it")
    return parts


@rule("Gather")
def _gather(call: Call) -> list[Symbolic]:
    value, places = call.tensor(0), call.tensor(1)
    axis = axis_of(value, call.attributes.get("axis", 0))
    own = value.axes[axis]
    if any(factor.row is not None for factor in own):
        raise Unclear("it picks rows")
    axes = (*value.axes[:axis], *places.axes, *value.axes[axis + 1 :])
    at = flat(value.axes)[axis].start
    count = len(places.factors)
    asked = places.read
    result = replace(
        value,
        axes=axes,
        read=None,
        zero=None,
        hidden=None,
        low=None,
        tainted=value.low is not None,
    )
    if asked is None or len(own) > 1 or not _inside(call.run, places):
        return [result]
    size = width(own)

    def came(index: Index) -> Index:
        cases = asked(index[at : at + count])
        if len(cases) != 1 or not isinstance(cases[0][1], Affine):
            raise Unclear("it picks by case")
        place = cases[0][1]
        if place.fixed is not None and place.fixed < 0:
            place = place + size
        return (*index[:at], *((place,) if own else ()), *index[at + count :])

    return [moved(value, axes, came)]


def _inside(run: Run, places: Symbolic) -> bool:
    """Whether no place is counted from the end, but for fixed ones."""
    read = places.read
    assert read is not None  # the caller asked
    index, inside = run.places(places)
    return all(
        isinstance(number, Affine)
        and (number.fixed is not None or run.never(*inside, condition, less(number, Affine())))
        for condition, number in read(index)
    )


@rule("GatherND")
def _gather_nd(call: Call) -> list[Symbolic]:
    value, places = call.tensor(0), call.tensor(1)
    count = width(places.axes[-1]).fixed
    if value.of_rows or call.attributes.get("batch_dims", 0) or count is None:
        raise Unclear("it picks rows")
    axes = (*places.axes[:-1], *value.axes[count:])
    result = Symbolic(
        axes, value.dtype, sized=value.sized, tainted=value.tainted or value.low is not None,
        wild=value.wild, sign=value.sign, reach=value.reach,
    )  # fmt: skip
    # A mask without padding is the same wherever it is looked at.
    only = value.read(call.run.places(value)[0]) if value.read is not None else ()
    if len(only) != 1 or (isinstance(only[0][1], Affine) and only[0][1].fixed is None):
        return [result]
    return [replace(result, read=lambda _: only)]


@rule("Trilu")
def _trilu(call: Call) -> list[Symbolic]:
    value, run = call.tensor(0), call.run
    shift = run.numbers(call.tensor(1))[0] if call.optional(1) is not None else Affine()
    upper = call.attributes.get("upper", 1)
    last = flat(value.axes)[-2:]
    if any(len(places) > 1 for places in last):
        raise Unclear("it is about rows of several heads")

    def kept(index: Index) -> Condition:
        row, column = (index[places.start] if places else Affine() for places in last)
        beyond = column - row - shift
        return settled(AtMost(beyond.times(-1)) if upper else AtMost(beyond))

    read = value.read
    if read is not None:

        def triangle(index: Index) -> Cases:
            inside = kept(index)
            none = Affine() if value.dtype.kind in "iub" else 0.0
            cases = [(settled(Every((inside, own))), number) for own, number in read(index)]
            cases.append((settled(negated(inside)), none))
            return tuple(case for case in cases if case[0] != FALSE)

        return [replace(value, read=triangle)]
    if value.of_rows and value.wild:
        return [replace(value, zero=None, hidden=None, low=None, convex=False)]
    zero = surely(value, "zero")
    return [replace(
        value, hidden=None, low=None,
        zero=lambda index: settled(Some((negated(kept(index)), zero(index)))),
    )]  # fmt: skip


@rule("CumSum")
def _cumsum(call: Call) -> list[Symbolic]:
    value, run = call.tensor(0), call.run
    (which,) = call.numbers(1, "axis") or [0]
    axis = axis_of(value, which)
    if call.attributes.get("reverse", 0) or len(value.axes[axis]) > 1:
        raise Unclear("it sums what comes later")
    at = flat(value.axes)[axis]
    result = replace(value, read=None, zero=None, hidden=None, low=None, convex=False, sized=True)
    result = replace(result, reach=value.reach + math.log2(LONGEST))
    if value.of_rows:
        run.grows = True
    read = value.read
    if read is None or not at:
        return [result]
    cases = read(run.places(value)[0])
    if len(cases) != 1 or not isinstance(cases[0][1], Affine) or cases[0][1].fixed is None:
        return [result]
    step, first = cases[0][1].fixed, 0 if call.attributes.get("exclusive", 0) else 1
    # The largest count must be a number of the dtype.
    if value.dtype != np.int64 or (abs(step) + 1) * LONGEST >= 1 << 63:
        return [result]

    def counted(index: Index) -> Cases:
        return ((_TRUE, (index[at.start] + first).times(step)),)

    return [replace(result, read=counted, sized=False)]
