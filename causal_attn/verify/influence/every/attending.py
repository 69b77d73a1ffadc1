"""Operators that attend: scores, mask, softmax and the weighted sum in one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.every.affine import Affine, Condition, less
from causal_attn.verify.influence.every.mapped import clean, lowered, overflows, reach_of
from causal_attn.verify.influence.every.mixing import softmax, summed
from causal_attn.verify.influence.every.moving import appended
from causal_attn.verify.influence.every.run import Call, Run, rule, silent
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
    width,
)
from causal_attn.verify.influence.origin import ANY
from causal_attn.verify.influence.registry import MICROSOFT

__all__: list[str] = []


@rule("RotaryEmbedding")
def _rotary(call: Call) -> list[Symbolic]:
    """Features of a token are mixed with one another and with its position."""
    value = call.tensor(0)
    if any(item.of_rows for item in call.tensors()[1:]):
        raise Unclear("its angles depend on the input")
    if any(factor.row is not None for factor in value.axes[-1]):
        raise Unclear("its features are rows")
    others = call.tensors()[1:]
    sized = value.sized or any(item.sized for item in others)
    call.run.grows |= sized and value.of_rows
    reach = 1 + value.reach + max(reach_of(call.run, item) for item in others)
    over = sized and overflows(reach, value.dtype)
    return [replace(
        value, read=None, zero=None, hidden=None, low=None, sign=ANY, convex=False,
        sized=sized, reach=reach, tainted=value.tainted or any(item.tainted for item in others),
        wild=over or any(item.wild for item in call.tensors()),
    )]  # fmt: skip


@rule("RotaryEmbedding", domain=MICROSOFT)
def _rotary_contrib(call: Call) -> list[Symbolic]:
    return list(_rotary(call))


@rule("Attention")
def _attention(call: Call) -> list[Symbolic]:
    """ONNX's own; before opset 25 kernels mask by the lowest number, from then on by ``-inf``."""
    run, attributes = call.run, call.attributes
    query, key, value = (call.tensor(at) for at in range(3))
    if call.optional(6) is not None:
        raise Unclear("an input says how many keys there are")
    if len(call.node.outputs) > 3:
        raise Unclear("it shows its scores")
    rows = 1 if len(query.axes) == 3 else 2
    past = Affine()
    if (earlier := call.optional(4)) is not None:
        if rows == 1:
            raise Unclear("its heads are folded beside a cache")
        past = width(earlier.axes[2])
        key = appended(run, earlier, key, 2)
        value = appended(run, call.tensor(5), value, 2)
    scores = _scores(query, key, rows)
    _scores(query, value, rows)  # raises where features or heads of the values are rows
    places = flat(scores.axes)
    exact = call.opset >= 25
    hidden: list[Mark] = []
    low: list[Mark] = []
    if attributes.get("is_causal", 0):
        at, keys = places[2], places[3]

        def later(index: Index) -> Condition:
            row = index[at.start] if at else Affine()
            return less(row + past, index[keys.start] if keys else Affine())

        (hidden if exact else low).append(later)
    if (mask := call.optional(3)) is not None:
        (mask, scores), axes = run.broadcast([mask, scores])
        if flat(axes) != places:
            raise Unclear("its mask tells groups of heads apart")
        if mask.dtype == np.bool_:
            (hidden if exact else low).append(surely(mask, "zero"))
        else:
            hidden.append(surely(mask, "hidden"))
            low += [surely(mask, "low")] if lowered(run, [mask]) else []
            scores = replace(scores, tainted=scores.tainted or not clean(run, mask))
        run.grows |= mask.sized
    scores = replace(scores, hidden=one_of(hidden), low=one_of(low) if low else None)
    features = value.axes[-1]
    if rows == 1:
        heads, shared = attributes["q_num_heads"], attributes["kv_num_heads"]
        features = (Factor(width(features).times(heads // shared)),)
    attended = _attended(run, scores, value, rows)
    run.grows |= any(item.sized for item in (query, key, value))
    axes = (query.axes[0], *([] if rows == 1 else [query.axes[1]]), attended, features)
    wild = any(item.wild for item in (query, key, value, scores))
    attention = Symbolic(
        axes, query.dtype, wild=wild, tainted=value.tainted, sized=value.sized, reach=value.reach
    )
    return [attention, key, value][: len(call.node.outputs)]


def _scores(query: Symbolic, key: Symbolic, rows: int) -> Symbolic:
    """Scores of all heads: what positions reach a query and a key reach their score."""
    axes = (query.axes[rows], key.axes[rows])
    others = [axis for at, axis in enumerate(query.axes) if at != rows]
    others += [axis for at, axis in enumerate(key.axes) if at != rows]
    if any(factor.row is not None for axis in others for factor in axis):
        raise Unclear("its features or heads are rows")
    if any(len(axis) > 1 for axis in axes):
        raise Unclear("its rows are of several heads")
    # Heads have fewer features than there are places.
    over = (query.sized or key.sized) and overflows(query.reach + key.reach + 24, query.dtype)
    return Symbolic(
        ((), (), *axes), query.dtype, wild=query.wild or key.wild or over,
        tainted=query.tainted or key.tainted,
    )  # fmt: skip


def _attended(run: Run, scores: Symbolic, value: Symbolic, rows: int) -> Axis:
    """The axis of queries of what attention makes of values."""
    weights = softmax(run, scores, 3)
    summand = Symbolic(((), (), (), value.axes[rows]), value.dtype)
    (weights, _), axes = run.broadcast([weights, summand])
    quiet = silent(value, surely(weights, "zero"))
    return summed(run, Symbolic(axes, value.dtype), [3], quiet, convex=True)[2]
