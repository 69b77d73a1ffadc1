"""Gather: known indices move elements exactly, indices that are data join them."""

from __future__ import annotations

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.movement import reshape, slice_axis
from causal_attn.verify.influence.rules.reductions import join_axes
from causal_attn.verify.influence.tensor import (
    Array,
    Tensor,
    apply,
    expand,
    make,
    reduce_bits,
    unknown,
)

__all__ = ["gather"]


def gather(data: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Rows of `data` along `axis`; an index that is data may be any row."""
    axis %= data.rank
    extra = indices.rank
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    dim = data.shape[axis]
    places = indices.low.astype(np.int64)
    places = np.where(indices.known, np.where(places < 0, places + dim, places), 0)
    if dim == 0:
        raise DataDependent("it gathers from an empty axis")
    places = np.clip(places, 0, dim - 1)

    def taken(plane: Array) -> Array:
        if plane.shape[axis] == 1:
            return plane.reshape((*plane.shape[:axis], *(1,) * extra, *plane.shape[axis + 1 :]))
        return np.take(plane, places, axis)

    if indices.known.all():
        return apply(data, taken, shape)

    def aligned(plane: Array) -> Array:
        return plane.reshape((*(1,) * axis, *plane.shape, *(1,) * (data.rank - axis - 1)))

    at_known = aligned(indices.known)
    shared = data.known if data.known.shape[axis] == data.low.shape[axis] == 1 else None
    same = taken(shared) if shared is not None else np.zeros((), bool)
    anywhere = [taken(plane) for plane in join_axes(data, (axis,)).bits]
    bits = [
        np.where(at_known, taken(exact), joined | aligned(index))
        for exact, joined, index in zip(data.bits, anywhere, indices.bits, strict=True)
    ]
    known = np.where(at_known, taken(data.known), same)
    low = np.where(known, taken(data.low), np.zeros((), data.dtype))
    return make(shape, data.dtype, bits, known, low)


@rule("Gather")
def _gather(call: Call) -> list[Tensor]:
    return [gather(call.tensor(0), call.tensor(1), call.attr("axis", 0))]


@rule("GatherBlockQuantized", domain=MICROSOFT)
def _gather_block_quantized(call: Call) -> list[Tensor]:
    data, indices, scales = call.tensor(0), call.tensor(1), call.tensor(2)
    axis = call.attr("gather_axis", 0)
    rows = gather(data, indices, axis)
    shape = list(rows.shape)
    if data.dtype == np.uint8:
        shape[-1] *= 8 // call.attr("bits", 4)
    result = unknown(rows.shape, scales.dtype, rows.bits)
    joined = join_axes(result, (result.rank - 1,))
    result = unknown(shape, scales.dtype, joined.bits)
    return [call.reached_by(result, *range(2, len(call.inputs)))]


@rule("GatherElements")
def _gather_elements(call: Call) -> list[Tensor]:
    data, indices = call.tensor(0), call.tensor(1)
    axis = call.attr("axis", 0) % data.rank
    others = [other for other in range(data.rank) if other != axis]
    cut = tuple(slice(0, indices.shape[other]) for other in range(data.rank))
    if (places := indices.value) is not None:
        dim = data.shape[axis]
        places = np.where(places < 0, places + dim, places).astype(np.int64)

        def move(plane: Array) -> Array:
            whole = expand(plane, data.shape, range(data.rank))
            kept = tuple(s if a != axis else slice(None) for a, s in enumerate(cut))
            return np.take_along_axis(whole[kept], places, axis)

        return [apply(data, move, indices.shape)]
    joined = join_axes(data, (axis,)).bits
    bits = []
    for plane, index in zip(joined, indices.bits, strict=True):
        for other in others:
            if plane.shape[other] != 1:
                plane = plane[(slice(None),) * other + (cut[other],)]
        bits.append(plane | index)
    return [unknown(indices.shape, data.dtype, bits)]


@rule("GatherND")
@rule("GatherND", domain=MICROSOFT)
def _gather_nd(call: Call) -> list[Tensor]:
    data, indices = call.tensor(0), call.tensor(1)
    batch = call.attr("batch_dims", 0)
    depth = indices.shape[-1]
    last = indices.rank - 1
    levels = [slice_axis(indices, last, at, at + 1).value for at in range(depth)]
    free = [batch + at for at, level in enumerate(levels) if level is None]
    if free:
        # Where an index is data, any element along its axis may be the one that is read.
        data = join_axes(data, free)
    flat = np.arange(data.size).reshape(data.shape)
    lead = np.indices(indices.shape[:-1], sparse=True)[:batch]
    shape = indices.shape[:-1]
    first = np.zeros(shape, np.int64)
    at = [first if level is None else level[..., 0] for level in levels]
    places = flat[(*lead, *at)]
    read = apply(
        data, lambda plane: np.broadcast_to(plane, data.shape).reshape(-1)[places], places.shape
    )
    if not free:
        return [read]
    trailing = (1,) * (read.rank - len(shape))
    asked = reduce_bits(indices, [last])
    bits = [
        plane | np.broadcast_to(index[..., 0], shape).reshape(shape + trailing)
        for plane, index in zip(read.bits, asked, strict=True)
    ]
    return [unknown(read.shape, read.dtype, bits)]


@rule("Compress")
def _compress(call: Call) -> list[Tensor]:
    data, condition = call.tensor(0), call.values(1)
    axis = call.attr("axis")
    if axis is None:
        data, axis = reshape(data, (data.size,)), 0
    places = np.flatnonzero(condition[: data.shape[axis]])
    return [gather(data, call.constant(places), axis)]
