"""Operators that sum over elements: what they sum must not be of later rows than the result."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from causal_attn.verify.influence.every.affine import (
    Affine,
    Condition,
    Every,
    Some,
    less,
    negated,
    settled,
)
from causal_attn.verify.influence.every.mapped import lowered, mapped, overflows, reach_of
from causal_attn.verify.influence.every.regrouping import transposed
from causal_attn.verify.influence.every.run import LONGEST, Call, Run, axis_of, rule, silent
from causal_attn.verify.influence.every.symbolic import (
    Axis,
    Factor,
    Index,
    Mark,
    Symbolic,
    Unclear,
    flat,
    one_of,
    surely,
)
from causal_attn.verify.influence.origin import ANY, NOT_NEGATIVE

__all__ = ["softmax", "summed"]


def summed(
    run: Run, value: Symbolic, axes: Collection[int], quiet: Mark, *, convex: bool = False
) -> tuple[Axis, ...]:
    """The axes of `value`, those summed over without rows, the rest of the rows that they see.

    Args:
        run: The evaluation.
        value: What is summed.
        axes: Over which.
        quiet: Which elements add nothing.
        convex: Their weights sum to one.

    Raises:
        Unclear: An element may be of a later row than the result, at some length.
    """
    places = flat(value.axes)
    gone = {place for axis in axes for place in places[axis]}
    factors = value.factors
    later = [place for place in gone if factors[place].row is not None]
    if any(factors[place].size.fixed is None for place in gone) and not convex:
        run.grows = True
    kept = {place: factor.row for place, factor in enumerate(factors) if place not in gone}
    if later:
        index, inside = run.places(value)
        heard = [*inside, negated(settled(quiet(index)))]
        kept = _covered(run, value, index, heard, later, kept)
    rows = [None if place in gone else kept[place] for place in range(len(factors))]
    return tuple(
        tuple(Factor(factors[place].size, rows[place]) for place in own) for own in places
    )


def _covered(
    run: Run,
    value: Symbolic,
    index: Index,
    heard: list[Condition],
    later: Sequence[int],
    kept: dict[int, Affine | None],
) -> dict[int, Affine | None]:
    """Rows of the factors that are kept, so that they are never earlier than what is heard."""
    factors = value.factors

    def covers(rows: dict[int, Affine | None]) -> bool:
        ends = [row + index[place] for place, row in rows.items() if row is not None]
        for place in later:
            row = factors[place].row
            assert row is not None  # `later` are those with one
            after = [less(end, row + index[place]) for end in ends]
            if not run.never(*heard, *after):
                return False
        return True

    if covers(kept):
        return kept
    for place, row in kept.items():
        if row is None and factors[place].size.fixed is None:
            rows = {**kept, place: run.total - factors[place].size}
            if covers(rows):
                return rows
    raise Unclear("no mask hides later positions from it at every length")


@rule("Softmax", "LogSoftmax")
def _softmax(call: Call) -> list[Symbolic]:
    scores = call.tensor(0)
    default = -1 if call.opset >= 13 else 1
    axis = axis_of(scores, call.attributes.get("axis", default))
    if call.opset < 13 and axis != len(scores.axes) - 1:
        raise Unclear("it is over several axes")
    weights = softmax(call.run, scores, axis)
    if call.node.op == "LogSoftmax":
        weights = replace(weights, zero=None, convex=False, sign=ANY, reach=scores.reach)
    return [weights]


def softmax(run: Run, scores: Symbolic, axis: int) -> Symbolic:
    """Weights along `axis`, zero where scores are hidden."""
    hidden, low = surely(scores, "hidden"), surely(scores, "low")
    closed = hidden
    try:
        axes = summed(run, scores, [axis], hidden, convex=True)
    except Unclear:
        if not lowered(run, [scores]):
            raise
        if scores.tainted:
            raise Unclear("large constants are added to scores, in more than a mask") from None
        closed = _also_low(run, scores, axis, hidden, low)
        axes = summed(run, scores, [axis], closed, convex=True)
        run.finite = True
    return Symbolic(
        axes, scores.dtype, zero=closed, sized=scores.sized, convex=True, wild=scores.wild,
        sign=NOT_NEGATIVE,
    )  # fmt: skip


def _also_low(run: Run, scores: Symbolic, axis: int, hidden: Mark, low: Mark) -> Mark:
    """Where scores are hidden, by a finite constant too: each row must have one that is not.

    Raises:
        Unclear: A row may have none, so that all count.
    """
    places = flat(scores.axes)
    if len(places[axis]) != 1:
        raise Unclear("no mask hides later positions from it at every length")
    column = places[axis].start

    def mark(index: Index) -> Condition:
        return settled(Some((hidden(index), low(index))))

    rows = [
        place
        for place, factor in enumerate(scores.factors)
        if place != column and factor.size.fixed is None
    ]
    for place in rows:
        index, inside = run.places(scores)
        # The row's own place among the columns: both end at the last position.
        own = index[place] + scores.factors[column].size - scores.factors[place].size
        at = (*index[:column], own, *index[column + 1 :])
        inside = [item for item in inside if not _about(item, index[column])]
        if run.at_most(scores.factors[place].size, scores.factors[column].size) and run.never(
            *inside, mark(at)
        ):
            return mark
    raise Unclear("a row may have no key that its mask leaves open, at some length")


def _about(condition: Condition, place: Affine) -> bool:
    return not isinstance(condition, Every | Some) and place.terms[0] in {
        (name, abs(count)) for name, count in condition.affine.terms
    }


@rule("MatMul")
def _matmul(call: Call) -> list[Symbolic]:
    return [matmul(call, call.tensor(0), call.tensor(1))]


def matmul(call: Call, one: Symbolic, other: Symbolic) -> Symbolic:
    """The matrix product."""
    run = call.run
    if len(one.axes) < 2 or len(other.axes) < 2:
        raise Unclear("it multiplies a vector")
    left = replace(one, axes=(*one.axes, ()))
    right = replace(other, axes=(*other.axes[:-2], (), *other.axes[-2:]))
    same, axes = run.broadcast([left, right])
    product = Symbolic(axes, one.dtype)
    rank = len(axes)
    marks = silent(other, surely(same[0], "zero")), silent(one, surely(same[1], "zero"))
    sized = one.sized or other.sized
    if sized and product.of_rows:
        run.grows = True
    convex = one.convex and not other.sized
    reach = reach_of(run, one) + reach_of(run, other) + (0 if convex else _bits(axes[rank - 2]))
    wide = summed(run, product, [rank - 2], one_of(marks), convex=convex)
    return Symbolic(
        (*wide[: rank - 2], wide[rank - 1]), one.dtype, sized=sized, reach=reach if sized else 0.0,
        tainted=_tainted(one) or _tainted(other),
        wild=one.wild or other.wild or (sized and overflows(reach, one.dtype)),
    )  # fmt: skip


def _bits(axis: Axis) -> float:
    """How many bits a sum along `axis` has more than what it sums."""
    return sum(math.log2(factor.size.fixed or LONGEST) for factor in axis)


def _tainted(value: Symbolic) -> bool:
    return value.tainted or value.low is not None


@rule("Gemm")
def _gemm(call: Call) -> list[Symbolic]:
    one, other = call.tensor(0), call.tensor(1)
    one = transposed(one, [1, 0]) if call.attributes.get("transA", 0) else one
    other = transposed(other, [1, 0]) if call.attributes.get("transB", 0) else other
    result = matmul(call, one, other)
    bias = call.optional(2)
    return [result if bias is None else mapped(call, [result, bias])[1]]


@rule("LayerNormalization", "RMSNormalization")
def _norm(call: Call) -> list[Symbolic]:
    value = call.tensor(0)
    first = axis_of(value, call.attributes.get("axis", -1))
    _require_features(value, range(first, len(value.axes)))
    if any(item.of_rows for item in call.tensors()[1:]) or len(call.node.outputs) > 1:
        raise Unclear("its gain depends on the input")
    gains = call.tensors()[1:]
    sized = any(item.sized for item in gains)
    call.run.grows |= sized
    return [Symbolic(
        value.axes, value.dtype, sized=sized, reach=max(reach_of(call.run, i) for i in gains),
        tainted=any(map(_tainted, gains)), wild=any(item.wild for item in call.tensors()),
    )]  # fmt: skip


def _require_features(value: Symbolic, axes: Collection[int]) -> None:
    factors = [factor for axis in axes for factor in value.axes[axis]]
    if any(factor.size.fixed is None or factor.row is not None for factor in factors):
        raise Unclear("it is over tokens")


_QUIET = {
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMax",
    "ReduceLogSumExp",
}  # fmt: skip
"""Those for which a zero, or ``-inf``, is as though it were not there."""


_SIGNED = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"}


@rule(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSumExp",
)  # fmt: skip
def _reduce(call: Call) -> list[Symbolic]:
    value, run, op = call.tensor(0), call.run, call.node.op
    wanted = call.numbers(1, "axes")
    if not wanted:
        if call.attributes.get("noop_with_empty_axes", 0):
            return [value]
        wanted = list(range(len(value.axes)))
    axes = {axis_of(value, at) for at in wanted}
    what = {"ReduceMax": "hidden", "ReduceLogSumExp": "hidden"}.get(op, "zero")
    quiet = surely(value, what) if op in _QUIET else one_of(())
    made = summed(run, value, axes, quiet)
    one = Affine(1)
    empty = any(not run.at_most(one, f.size) for at in axes for f in value.axes[at])
    keep = call.attributes.get("keepdims", 1)
    kept = [() if at in axes else axis for at, axis in enumerate(made) if keep or at not in axes]
    bits = sum(_bits(value.axes[at]) for at in axes)
    own = reach_of(run, value)
    reach = own * 2.0**bits if op == "ReduceProd" else 2 * own + bits
    over = value.sized and overflows(reach, value.dtype)
    return [Symbolic(
        tuple(kept), value.dtype, sized=value.sized, reach=reach if value.sized else 0.0,
        tainted=_tainted(value) and op != "ReduceMax",
        wild=value.wild or empty or over, sign=value.sign if op in _SIGNED and not empty else ANY,
    )]  # fmt: skip
