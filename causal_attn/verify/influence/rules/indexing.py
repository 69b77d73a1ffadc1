"""Gather and scatter: known indices move elements exactly, indices that are data join them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.movement import concat, reshape, slice_axis
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

__all__ = ["gather", "overwrite"]


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


def overwrite(data: Tensor, updates: Tensor, source: Array, combine: bool = False) -> Tensor:
    """`data` with elements replaced.

    Args:
        data: What is written into.
        updates: What is written.
        source: For every element of `data` the flat place in `updates` of what is written there,
            or -1.
        combine: The update is added or compared, so both count.
    """
    written = source >= 0
    places = np.where(written, source, 0)
    plane_of = _full(updates)

    def moved(plane: Array) -> Array:
        return plane_of(plane).reshape(-1)[places]

    if updates.size == 0:
        return data
    if combine:
        bits = [
            np.where(written, old | moved(new), old)
            for old, new in zip(data.bits, updates.bits, strict=True)
        ]
        known = data.known & ~written
        low = np.where(known, data.low, np.zeros((), data.dtype))
        return make(data.shape, data.dtype, bits, known, low)
    return make(
        data.shape,
        data.dtype,
        [
            np.where(written, moved(new), old)
            for old, new in zip(data.bits, updates.bits, strict=True)
        ],
        np.where(written, moved(updates.known), data.known),
        np.where(written, moved(updates.low), data.low),
        np.where(written, moved(updates.high), data.high),
    )


def _full(tensor: Tensor) -> Callable[[Array], Array]:
    return lambda plane: np.broadcast_to(plane, tensor.shape)


@rule("Gather")
def _gather(call: Call) -> list[Tensor]:
    return [gather(call.tensor(0), call.tensor(1), call.attr("axis", 0))]


@rule("GatherBlockQuantized", domain=MICROSOFT)
def _gather_block_quantized(call: Call) -> list[Tensor]:
    data, indices, scales = call.tensor(0), call.tensor(1), call.tensor(2)
    axis = call.attr("gather_axis", 0)
    rows = gather(data, indices, axis)
    shape = list(rows.shape)
    if data.dtype == np.uint8 and call.attr("bits", 4) == 4:
        shape[-1] *= 2
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
    levels = [slice_axis(indices, indices.rank - 1, at, at + 1) for at in range(depth)]
    free = [batch + at for at, level in enumerate(levels) if level.value is None]
    if free:
        # Where an index is data, any element along its axis may be the one that is read.
        data = join_axes(data, free)
    flat = np.arange(data.size).reshape(data.shape)
    lead = np.indices(indices.shape[:-1], sparse=True)[:batch]
    shape = indices.shape[:-1]
    at = [np.zeros(shape, np.int64) if v is None else v[..., 0] for v in (x.value for x in levels)]
    places = flat[(*lead, *at)]
    read = apply(
        data, lambda plane: np.broadcast_to(plane, data.shape).reshape(-1)[places], places.shape
    )
    if not free:
        return [read]
    trailing = (1,) * (read.rank - len(shape))
    asked = reduce_bits(indices, [indices.rank - 1])
    bits = [
        plane | np.broadcast_to(index[..., 0], shape).reshape(shape + trailing)
        for plane, index in zip(read.bits, asked, strict=True)
    ]
    return [unknown(read.shape, read.dtype, bits)]


@rule("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> list[Tensor]:
    data, indices, updates = call.tensor(0), call.values(1), call.tensor(2)
    axis = call.attr("axis", 0) % data.rank
    source = np.full(data.shape, -1, np.int64)
    places = np.where(indices < 0, indices + data.shape[axis], indices).astype(np.int64)
    index: list[Array] = list(np.indices(indices.shape, sparse=True))
    index[axis] = places
    combine = call.attr("reduction", "none") != "none"
    flat = np.arange(updates.size).reshape(updates.shape)
    if not combine:
        source[tuple(index)] = flat
        return [overwrite(data, updates, source)]
    return [_combined(data, updates, tuple(index), flat)]


@rule("ScatterND")
def _scatter_nd(call: Call) -> list[Tensor]:
    data, indices, updates = call.tensor(0), call.values(1), call.tensor(2)
    index = tuple(indices[..., level] for level in range(indices.shape[-1]))
    flat = np.arange(updates.size).reshape(updates.shape)
    if call.attr("reduction", "none") == "none":
        source = np.full(data.shape, -1, np.int64)
        source[index] = flat
        return [overwrite(data, updates, source)]
    return [_combined(data, updates, index, flat)]


def _combined(data: Tensor, updates: Tensor, index: tuple[Array, ...], flat: Array) -> Tensor:
    """Updates that are added may meet in one element, so they are joined one by one."""
    bits = []
    for old, new in zip(data.bits, updates.bits, strict=True):
        plane = np.array(np.broadcast_to(old, data.shape))
        np.bitwise_or.at(plane, index, np.broadcast_to(new, updates.shape))
        bits.append(plane)
    touched = np.zeros(data.shape, bool)
    touched[index] = True
    known = data.known & ~touched
    low = np.where(known, data.low, np.zeros((), data.dtype))
    return make(data.shape, data.dtype, bits, known, low)


@rule("TensorScatter")
def _tensor_scatter(call: Call) -> list[Tensor]:
    """A cache with new rows written at ``write_indices``, one index a batch row."""
    cache, update = call.tensor(0), call.tensor(1)
    axis = call.attr("axis", -2) % cache.rank
    starts = call.values(2) if call.has(2) else np.zeros(cache.shape[0], np.int64)
    rows = []
    new = update.shape[axis]
    for batch, first in enumerate(int(item) for item in starts):
        row = slice_axis(cache, 0, batch, batch + 1)
        fresh = slice_axis(update, 0, batch, batch + 1)
        dim = cache.shape[axis]
        if call.attr("mode", "linear") == "circular":
            places = (np.arange(new) + first) % dim
        elif first + new > dim:
            raise DataDependent("it writes past the end of the cache")
        else:
            places = np.arange(new) + first
        order = np.full(dim, -1)
        order[places] = np.arange(new)
        pieces = [
            slice_axis(row, axis, at, at + 1)
            if order[at] < 0
            else slice_axis(fresh, axis, int(order[at]), int(order[at]) + 1)
            for at in range(dim)
        ]
        rows.append(concat(pieces, axis))
    return [concat(rows, 0)]


@rule("Compress")
def _compress(call: Call) -> list[Tensor]:
    data, condition = call.tensor(0), call.values(1)
    axis = call.attr("axis")
    if axis is None:
        data, axis = reshape(data, (data.size,)), 0
    places = np.flatnonzero(condition[: data.shape[axis]])
    return [gather(data, call.constant(places), axis)]
