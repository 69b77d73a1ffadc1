"""Reductions, norms and scans along axes: everything that is reduced is joined."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, rule
from causal_attn.verify.influence.rules.combine import opaque
from causal_attn.verify.influence.rules.softmax import hidden_scores
from causal_attn.verify.influence.tensor import (
    Array,
    Tensor,
    expand,
    make,
    reduce_bits,
    unknown,
)

__all__ = ["join_axes"]


def join_axes(tensor: Tensor, axes: Iterable[int]) -> Tensor:
    """Every element depends on all others along `axes`; the shape stays."""
    axes = [axis % tensor.rank for axis in axes]
    return unknown(tensor.shape, tensor.dtype, reduce_bits(tensor, axes))


def _reduced(call: Call, tensor: Tensor, bits: list[Array], axes: list[int]) -> Tensor:
    keep = call.attr("keepdims", 1)
    shape = [1 if axis in axes else dim for axis, dim in enumerate(tensor.shape)]
    result = unknown(shape, tensor.dtype, bits)
    if keep:
        return result
    rest = [axis for axis in range(tensor.rank) if axis not in axes]
    planes = [plane.reshape([plane.shape[axis] for axis in rest]) for plane in result.bits]
    return unknown([tensor.shape[axis] for axis in rest], tensor.dtype, planes)


def _axes(call: Call, tensor: Tensor) -> list[int] | None:
    axes = call.ints(1, "axes")
    if not axes:
        return None if call.attr("noop_with_empty_axes", 0) else list(range(tensor.rank))
    return [axis % tensor.rank for axis in axes]


@rule(
    "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", fold=True,
)  # fmt: skip
def _reduce(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axes = _axes(call, tensor)
    if axes is None:
        return [tensor]
    return [_reduced(call, tensor, reduce_bits(tensor, axes), axes)]


@rule("ReduceMax", "ReduceMin", "ReduceLogSumExp", fold=True)
def _reduce_extreme(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axes = _axes(call, tensor)
    if axes is None:
        return [tensor]
    if call.node.op == "ReduceMin" or len(axes) != 1 or tensor.dtype.kind in "iub":
        return [_reduced(call, tensor, reduce_bits(tensor, axes), axes)]
    (axis,) = axes
    hidden, best = hidden_scores(call.mode, tensor, axis, call.score(0))
    bits = reduce_bits(tensor, axes, keep=~hidden)
    result = _reduced(call, tensor, bits, axes)
    low = best.astype(tensor.dtype)
    if not np.isfinite(low).all() or not low.any():
        return [result]
    if not call.attr("keepdims", 1):
        low = low.reshape([dim for at, dim in enumerate(low.shape) if at != axis])
    return [make(result.shape, result.dtype, result.bits, result.known, low)]


@rule("ArgMax", "ArgMin", fold=True)
def _arg(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = call.attr("axis", 0) % tensor.rank
    result = _reduced(call, tensor, reduce_bits(tensor, [axis]), [axis])
    return [unknown(result.shape, np.int64, result.bits)]


@rule("TopK", fold=True)
def _top_k(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = call.attr("axis", -1) % tensor.rank
    count = int(call.values(1).reshape(-1)[0]) if call.has(1) else call.attr("k")
    shape = [count if at == axis else dim for at, dim in enumerate(tensor.shape)]
    bits = reduce_bits(tensor, [axis])
    return [unknown(shape, tensor.dtype, bits), unknown(shape, np.int64, bits)]


@rule("CumSum", "CumProd", fold=True)
def _cumulative(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = int(call.values(1).reshape(-1)[0]) % tensor.rank
    backwards = slice(None, None, -1) if call.attr("reverse", 0) else slice(None)
    turn = (slice(None),) * axis + (backwards,)
    bits = []
    for plane in tensor.bits:
        if plane.any():
            plane = expand(plane, tensor.shape, [axis])[turn]
            joined = np.bitwise_or.accumulate(plane, axis)
            if call.attr("exclusive", 0):
                before = joined[(slice(None),) * axis + (slice(0, -1),)]
                first = np.zeros_like(joined[(slice(None),) * axis + (slice(0, 1),)])
                joined = np.concatenate([first, before], axis)
            plane = joined[turn]
        bits.append(plane)
    return [unknown(tensor.shape, tensor.dtype, bits)]


def _norm(call: Call, tensor: Tensor, axes: list[int], others: list[Tensor]) -> list[Tensor]:
    joined = join_axes(tensor, axes)
    result = opaque([joined, *others], tensor.dtype)
    if len(call.node.outputs) == 1:
        return [result]
    # Mean and deviation, where they are asked for, depend on what the result depends on.
    shape = [1 if axis in axes else dim for axis, dim in enumerate(tensor.shape)]
    statistics = unknown(shape, np.float32, reduce_bits(tensor, axes))
    return [result, statistics, statistics]


@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
@rule("LayerNormalization", "SimplifiedLayerNormalization", domain=MICROSOFT)
def _layer_norm(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = call.attr("axis", -1) % tensor.rank
    others = [call.tensor(at) for at in range(1, len(call.inputs)) if call.has(at)]
    return _norm(call, tensor, list(range(axis, tensor.rank)), others)


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_layer_norm(call: Call) -> list[Tensor]:
    names: tuple[str, ...] = ("input", "skip", "gamma", "beta", "bias")
    if call.node.op == "SkipSimplifiedLayerNormalization":
        names = ("input", "skip", "gamma", "bias")
    given = {name: call.tensor(at) for at, name in enumerate(names) if call.has(at)}
    parts = [given[name] for name in ("input", "skip", "bias") if name in given]
    total = opaque(parts)
    axes = [total.rank - 1]
    scales = [given[name] for name in ("gamma", "beta") if name in given]
    result = opaque([join_axes(total, axes), *scales])
    statistics = unknown((*total.shape[:-1], 1), np.float32, reduce_bits(total, axes))
    return [result, statistics, statistics, total]


@rule("BatchNormalization")
def _batch_norm(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    ones = (1,) * (tensor.rank - 2)
    result = (
        join_axes(tensor, [0, *range(2, tensor.rank)]) if call.attr("training_mode", 0) else tensor
    )
    others = []
    for at in range(1, 5):
        stat = call.tensor(at)
        planes = [plane.reshape(*plane.shape, *ones) for plane in stat.bits]
        others.append(unknown((*stat.shape, *ones), stat.dtype, planes))
    statistics = [call.tensor(at) for at in (3, 4)]
    if call.attr("training_mode", 0):
        statistics = [
            call.reached_by(call.silent(stat.shape, stat.dtype), 0, 3, 4) for stat in statistics
        ]
    return [opaque([result, *others]), *statistics]


@rule("InstanceNormalization")
def _instance_norm(call: Call) -> list[Tensor]:
    return [call.reached_by(join_axes(call.tensor(0), range(2, call.tensor(0).rank)), 1, 2)]


@rule("GroupNormalization")
def _group_norm(call: Call) -> list[Tensor]:
    # Groups are joined as one: channels of a norm do not hold tokens, spatial axes may.
    return [call.reached_by(join_axes(call.tensor(0), range(1, call.tensor(0).rank)), 1, 2)]


@rule("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def _group_norm_contrib(call: Call) -> list[Tensor]:
    data = call.tensor(0)
    result = call.reached_by(join_axes(data, range(1, data.rank)), *range(1, len(call.inputs)))
    return [result, result]


@rule("LpNormalization")
def _lp_norm(call: Call) -> list[Tensor]:
    return [join_axes(call.tensor(0), [call.attr("axis", -1)])]


@rule("LRN")
def _lrn(call: Call) -> list[Tensor]:
    return [join_axes(call.tensor(0), [1])]


@rule("MeanVarianceNormalization")
def _mean_variance(call: Call) -> list[Tensor]:
    return [join_axes(call.tensor(0), call.attr("axes", [0, 2, 3]))]


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_norm(call: Call) -> list[Tensor]:
    ids = call.tensor(0)
    hidden = call.tensor(2).shape[-1]
    sources = [ids, *(call.tensor(at) for at in (1, 8) if call.has(at))]
    rows = opaque(sources)
    shape = (*ids.shape, hidden)
    result = unknown(shape, call.tensor(2).dtype, [plane[..., None] for plane in rows.bits])
    result = call.reached_by(result, 2, 3, 4, 5, 6)
    mask = call.optional(7)
    if mask is None:
        index = call.constant(np.zeros(ids.shape[0]), np.int32)
    elif (values := mask.value) is not None:
        index = call.constant(values.sum(-1), np.int32)
    else:
        index = unknown(ids.shape[:1], np.int32, [p[:, 0] for p in reduce_bits(mask, [1])])
    return [result, index, result]
