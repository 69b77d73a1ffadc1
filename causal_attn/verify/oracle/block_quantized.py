"""Weights stored as integers of a few bits with a scale for each block, in plain numpy.

A weight is ``(code - zero_point) * scale``, as the schemas of ONNX Runtime's ``MatMulNBits`` and
``GatherBlockQuantized`` say; here that product, and what is done with it, is of the dtype of the
scales. Codes of less than a byte are packed along the last axis, the lowest bits first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

__all__ = ["GatherBlockQuantized", "MatMulNBits", "dequantized"]

Array = NDArray[Any]

_CHUNK = 1 << 22
"""Weights that are floats at one time: those of a large matrix would fill the memory."""


class MatMulNBits(OpRun):
    """``a @ w.T + bias`` for weights ``w [N, K]`` in blocks along K."""

    op_domain = "com.microsoft"

    # The inputs and attributes are those of the operator's schema.
    def _run(
        self,
        a: Array,
        packed: Array,
        scales: Array,
        zero_points: Array | None = None,
        groups: Array | None = None,
        bias: Array | None = None,
        *,
        K: int,
        N: int,
        block_size: int,
        bits: int | None = None,
        accuracy_level: int | None = None,
        weight_prepacked: int | None = None,
    ) -> tuple[Array]:
        if weight_prepacked:
            raise NotImplementedError("MatMulNBits with weights in the layout of one device")
        if groups is not None and zero_points is not None and zero_points.dtype == np.uint8:
            # The schema calls groups deprecated and does not say which zero point is whose; ONNX
            # Runtime 1.32's CPU kernel takes another than that of the group.
            raise NotImplementedError("MatMulNBits with packed zero points of groups")
        result = np.zeros((*a.shape[:-1], N), a.dtype)
        # Without weights, the schema says, the product is zeros.
        if packed.size:
            rows = max(1, _CHUNK // K)
            for start in range(0, N, rows):
                part = slice(start, min(start + rows, N))
                weights = dequantized(
                    packed.reshape(N, -1)[part],
                    scales.reshape(N, -1)[part],
                    None if zero_points is None else zero_points.reshape(N, -1)[part],
                    bits=bits or 4,
                    block_size=block_size,
                    features=K,
                    groups=groups,
                )
                result[..., part] = _product(a, weights)
        return ((result if bias is None else result + bias).astype(a.dtype),)


def _product(a: Array, weights: Array) -> Array:
    """``a @ weights.T``; in float32 the terms are added one after another.

    The schema leaves their order open, and that is the plainest one: ONNX Runtime's CPU kernel has
    it from two rows on. Its error grows with the square root of the number of terms, where that of
    a matrix product in tiles hardly does (Higham, "The accuracy of floating point summation",
    1993), so that an honest run in tiles would be too good an example.
    """
    if a.dtype != np.float32:
        product: Array = a @ weights.T
        return product
    terms = a.reshape(-1, a.shape[-1]).T
    columns = np.ascontiguousarray(weights.T)
    total = np.zeros((terms.shape[1], len(weights)), np.float32)
    for term, column in zip(terms, columns, strict=True):
        total += term[:, None] * column
    return total.reshape(*a.shape[:-1], len(weights))


def dequantized(
    packed: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int,
    block_size: int,
    features: int,
    groups: Array | None = None,
) -> Array:
    """The weights of ``MatMulNBits``, ``[rows, features]``, of the dtype of `scales`.

    Args:
        packed: ``[rows, blocks * block_size * bits / 8]`` uint8.
        scales: ``[rows, blocks]``.
        zero_points: ``[rows, blocks]`` floats, or packed as `packed` is; default the middle.
        bits: Of a code.
        block_size: Codes of a block.
        features: Of a row; the rest of the last block is filler.
        groups: ``[features]``: the block whose scale a feature has, where that is another one.
    """
    blocks = scales.shape[1]
    codes = _unpacked(packed, bits, features)
    points = _zero_points(zero_points, bits, scales)
    places = np.arange(features) // block_size if groups is None else groups[:features]
    assert places.max(initial=0) < blocks
    weights: Array = (codes.astype(scales.dtype) - points[:, places]) * scales[:, places]
    return weights


class GatherBlockQuantized(OpRun):
    """Rows of a table that is stored in blocks along one axis; an index beyond it gives zeros."""

    op_domain = "com.microsoft"

    # The inputs and attributes are those of the operator's schema.
    def _run(
        self,
        data: Array,
        indices: Array,
        scales: Array,
        zero_points: Array | None = None,
        *,
        bits: int | None = None,
        block_size: int | None = None,
        gather_axis: int | None = None,
        quantize_axis: int | None = None,
    ) -> tuple[Array]:
        axis = (gather_axis or 0) % data.ndim
        along = (1 if quantize_axis is None else quantize_axis) % data.ndim
        size = data.shape[axis]
        inside = (indices >= -size) & (indices < size)
        places = np.where(inside, indices % size, 0)
        points, bits = zero_points, bits or 4
        block_size = 128 if block_size is None else block_size
        if axis == along:
            rows = _table(data, scales, points, bits, block_size, along).take(places, axis)
        else:
            # A vocabulary is large: rows are taken before they become floats.
            data = data.take(places, axis)
            shape = (*scales.shape[:axis], size, *scales.shape[axis + 1 :])
            scales = np.broadcast_to(scales, shape).take(places, axis)
            points = None if points is None else points.take(places, axis)
            along += indices.ndim - 1 if along > axis else 0
            rows = _table(data, scales, points, bits, block_size, along)
        seen = inside.reshape((1,) * axis + inside.shape + (1,) * (rows.ndim - axis - inside.ndim))
        return (np.where(seen, rows, np.zeros((), rows.dtype)),)


def _table(
    data: Array, scales: Array, zero_points: Array | None, bits: int, block_size: int, along: int
) -> Array:
    """``(data - zero_points) * scales``, of the dtype of `scales`; blocks lie along an axis."""
    if data.dtype == np.uint8:
        data = _unpacked(data, bits, data.shape[-1] * (8 // bits))
        points = _zero_points(zero_points, bits, scales)
    else:
        points = np.zeros_like(scales) if zero_points is None else zero_points.astype(scales.dtype)
    count = data.shape[along]
    block = np.arange(count) // (block_size or count)
    table: Array = data.astype(scales.dtype) - points.take(block, along)
    return table * scales.take(block, along)


def _zero_points(given: Array | None, bits: int, scales: Array) -> Array:
    """A zero point for each of `scales`, of their dtype."""
    if given is None:
        return np.full_like(scales, 1 << (bits - 1))
    if given.dtype == np.uint8:
        given = _unpacked(given, bits, scales.shape[-1])
    return given.astype(scales.dtype).reshape(scales.shape)


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """The first `count` codes of each row of bytes: uint8 ``[…, count]``."""
    if bits == 8:
        return packed[..., :count]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)[..., :count]
