"""What is known of the size of a tensor's values, in float64.

A tensor of the proof is data plus constants, those that masks add; see
`causal_attn.verify.influence.tensor`. An extent is about the data, small known values among it,
and not about the constants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal_attn.verify.influence.tensor import SMALLEST_OFFSET, Array, Tensor

__all__ = ["EMPTY", "UNBOUNDED", "Extent", "hull", "known_values", "product", "with_constants"]

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """Bounds on a tensor.

    Attributes:
        low: No value is below it.
        high: No value is above it.
        norm: The values along all of `axes` together, for any place along the others, are at
            most this long (Euclidean). So are those along any of the axes, and any part of them.
        axes: See `norm`.
        share: ``(axis, sum)``: along the axis the magnitudes add up to at most this.
        array: The values themselves, where the tensor is stored.
    """

    low: float = -math.inf
    high: float = math.inf
    norm: float = math.inf
    axes: frozenset[int] = frozenset()
    share: tuple[int, float] | None = None
    array: Array | None = None

    @property
    def size(self) -> float:
        """Largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def length(self, shape: Sequence[int], axes: Collection[int]) -> float:
        """Bound on the Euclidean length along `axes` of a tensor of this `shape`."""
        axes = {axis % len(shape) for axis in axes}
        bounds = [_times(self.size, _root(shape, axes))]
        if self.axes and math.isfinite(self.norm):
            bounds.append(_times(self.norm, _root(shape, axes - self.axes)))
        if self.array is not None:
            bounds.append(_longest(self.array, axes))
        return min(bounds)

    def along(self, shape: Sequence[int], axes: Collection[int]) -> Extent:
        """The same, its norm taken along `axes`."""
        return replace(self, norm=self.length(shape, axes), axes=frozenset(axes), array=None)

    def scaled(self, factor: float) -> Extent:
        """Of values multiplied by something of at most this magnitude."""
        size = _times(self.size, factor)
        share = None if self.share is None else (self.share[0], _times(self.share[1], factor))
        return Extent(-size, size, _times(self.norm, factor), self.axes, share)

    def within(self, low: float, high: float) -> Extent:
        """With another interval; norms that hold anyway stay."""
        return replace(self, low=low, high=high, array=None)


UNBOUNDED = Extent()
EMPTY = Extent(0.0, 0.0, 0.0, frozenset())


def hull(extents: Iterable[Extent]) -> Extent:
    """Interval that holds all of them."""
    extents = list(extents)
    return Extent(min(e.low for e in extents), max(e.high for e in extents))


def product(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Interval of products."""
    ends = [_times(x, y) for x in a for y in b]
    return min(ends), max(ends)


def known_values(tensor: Tensor) -> Extent | None:
    """Of the known values that count as data; ``None``: there are none."""
    if not tensor.known.any():
        return None
    values, known = np.broadcast_arrays(tensor.low.astype(np.float64), tensor.known)
    small = values[known & (np.abs(values) < SMALLEST_OFFSET)]
    return Extent(float(small.min()), float(small.max())) if small.size else EMPTY


def with_constants(tensor: Tensor, extent: Extent) -> tuple[float, float]:
    """Interval of the values, constants included."""
    if tensor.plain or tensor.size == 0:
        return extent.low, extent.high
    low, high = (end.astype(np.float64) for end in (tensor.low, tensor.high))
    least = np.where(np.abs(low) < SMALLEST_OFFSET, 0.0, low).min()
    most = np.where(np.abs(high) < SMALLEST_OFFSET, 0.0, high).max()
    ends = extent.low + min(0.0, float(least)), extent.high + max(0.0, float(most))
    return (
        -math.inf if math.isnan(ends[0]) else ends[0],
        math.inf if math.isnan(ends[1]) else ends[1],
    )


def _times(a: float, b: float) -> float:
    """Product in which nothing times no bound is nothing."""
    return 0.0 if a == 0 or b == 0 else a * b


def _root(shape: Sequence[int], axes: Iterable[int]) -> float:
    return math.sqrt(math.prod(shape[axis] for axis in axes))


def _longest(array: Array, axes: Collection[int]) -> float:
    """Largest Euclidean length along `axes`, a part of the array at a time."""
    if not array.size:
        return 0.0
    first = 0 in axes
    step = max(1, _CHUNK * array.shape[0] // array.size) if array.ndim else 1
    if not array.ndim:
        return abs(float(array))
    total, largest = np.zeros(()), 0.0
    for start in range(0, array.shape[0], step):
        part = array[start : start + step].astype(np.float64)
        squares = np.square(part).sum(axis=tuple(axes), keepdims=True)
        if first:
            total = total + squares
        else:
            largest = max(largest, float(squares.max()))
    squared = float(total.max()) if first else largest
    return math.sqrt(squared) if squared >= 0 else math.inf
