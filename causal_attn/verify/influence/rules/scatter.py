"""Scatter: known indices write exactly, indices that are data may write to any element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from causal_attn.verify.influence.registry import Call, DataDependent, rule
from causal_attn.verify.influence.rules.movement import concat, slice_axis
from causal_attn.verify.influence.tensor import Array, Tensor, make, reduce_bits, unknown

__all__ = ["overwrite"]


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


@rule("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> list[Tensor]:
    data, indices, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    axis = call.attr("axis", 0) % data.rank
    index: list[Array] = list(np.indices(indices.shape, sparse=True))
    values = indices.value
    if values is None:
        index[axis] = np.zeros(indices.shape, np.int64)
        return [_anywhere(data, updates, indices, tuple(index), (axis,))]
    index[axis] = np.where(values < 0, values + data.shape[axis], values).astype(np.int64)
    flat = np.arange(updates.size).reshape(updates.shape)
    if call.attr("reduction", "none") != "none":
        return [_combined(data, updates, tuple(index), flat)]
    source = np.full(data.shape, -1, np.int64)
    source[tuple(index)] = flat
    return [overwrite(data, updates, source)]


@rule("ScatterND")
def _scatter_nd(call: Call) -> list[Tensor]:
    data, indices, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    depth = indices.shape[-1]
    last = indices.rank - 1
    levels = [slice_axis(indices, last, at, at + 1).value for at in range(depth)]
    free = tuple(at for at, level in enumerate(levels) if level is None)
    first = np.zeros(indices.shape[:-1], np.int64)
    index = tuple(first if level is None else level[..., 0] for level in levels)
    if free:
        joined = reduce_bits(indices, [last])
        rows = [
            plane.reshape((*plane.shape[:-1], *(1,) * (data.rank - depth))) for plane in joined
        ]
        asked = unknown((*indices.shape[:-1], *data.shape[depth:]), indices.dtype, rows)
        return [_anywhere(data, updates, asked, index, free)]
    flat = np.arange(updates.size).reshape(updates.shape)
    if call.attr("reduction", "none") != "none":
        return [_combined(data, updates, index, flat)]
    source = np.full(data.shape, -1, np.int64)
    source[index] = flat
    return [overwrite(data, updates, source)]


def _anywhere(
    data: Tensor, updates: Tensor, indices: Tensor, index: tuple[Array, ...], free: tuple[int, ...]
) -> Tensor:
    """Updates written where data says along the axes `free`: any element there may be one.

    Args:
        data: What is written into.
        updates: What is written.
        indices: What reaches the indices of each update; broadcasts to `updates`.
        index: Where each update goes, 0 along `free`.
        free: Axes of `data`.
    """
    shape = [1 if axis in free else dim for axis, dim in enumerate(data.shape)]
    touched = np.zeros(shape, bool)
    touched[index] = bool(updates.size)
    bits = []
    for old, new, asked in zip(data.bits, updates.bits, indices.bits, strict=True):
        plane = np.zeros(shape, np.uint64)
        if updates.size:
            np.bitwise_or.at(plane, index, np.broadcast_to(new | asked, updates.shape))
        bits.append(old | plane)
    known = data.known & ~touched
    low = np.where(known, data.low, np.zeros((), data.dtype))
    return make(data.shape, data.dtype, bits, known, low)


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
