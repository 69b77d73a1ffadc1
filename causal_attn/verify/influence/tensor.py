"""A tensor as the proof sees it: shape, who can reach each element, what is known of its value.

Every per-element fact is a *plane*: an array of the tensor's rank whose axes have the tensor's
size or 1. An axis of size 1 says that all elements along it share the fact, so the activation
``[batch, tokens, 768]`` of a decoder costs ``[1, tokens, 1]`` however wide the model is.

======== ===========================================================================
plane    meaning of one element
======== ===========================================================================
``bits`` the input positions that can reach it, one bit each, in 64-bit words; one plane a word
known    its value is ``low``, whatever the inputs are; then ``bits`` is empty
low      known: the value. Not known: data plus a constant that is at least ``low``
high     the same with at most ``high``; differs from ``low`` only where a condition is data
void     not known, but zero or NaN, of either sign; ``bits`` decide which of the two
======== ===========================================================================

The constants under unknown elements are those that a finite mask adds (``-1e4``, the lowest
float). Constants below `SMALLEST_OFFSET` are counted as data: a bias is no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SMALLEST_OFFSET",
    "Array",
    "Reordered",
    "Sequenced",
    "Tensor",
    "Unshaped",
    "Value",
    "Words",
    "apply",
    "broadcast_words",
    "compress",
    "constant",
    "expand",
    "join_words",
    "lift",
    "make",
    "no_bits",
    "reduce_bits",
    "unknown",
]

Array = NDArray[Any]
Words = tuple[int, ...]

SMALLEST_OFFSET = 64.0
"""Added constants below this are data: far too small to underflow ``exp`` in any float dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An abstract tensor; see the module for the planes.

    Attributes:
        shape: Concrete sizes.
        dtype: Element type, as numpy (or ml_dtypes) has it.
        bits: One ``uint64`` plane for each 64 positions.
        known: ``bool`` plane.
        low: Plane of `dtype`.
        high: Plane of `dtype`; the same object as `low` where they do not differ.
        void: ``bool`` plane; ``None``: nowhere.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bits: tuple[Array, ...]
    known: Array
    low: Array
    high: Array
    void: Array | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for dim in self.shape:
            size *= dim
        return size

    @property
    def value(self) -> Array | None:
        """The values as an array of `shape`, or ``None`` unless all of them are known."""
        if self.size == 0:
            return np.zeros(self.shape, self.dtype)
        return np.broadcast_to(self.low, self.shape) if self.known.all() else None

    @property
    def plain(self) -> bool:
        """Nothing is known of any value, and no constant was added."""
        return not self.known.any() and self.high is self.low and not self.low.any()

    @property
    def zero(self) -> Array:
        """Plane: the element is known to be zero."""
        result: Array = self.known & (self.low == 0)
        return result

    @property
    def nought(self) -> Array:
        """Plane: no finite factor makes anything of the element: zero, or zero or NaN."""
        return self.zero if self.void is None else self.zero | self.void


@dataclass(frozen=True, slots=True)
class Unshaped:
    """A tensor whose shape could not be found: all that is left is who can reach it."""

    words: Words


@dataclass(frozen=True, slots=True)
class Sequenced:
    """An ONNX sequence of tensors."""

    items: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reordered:
    """A tensor whose elements along an axis data put into another order, or picked from.

    Experts take their tokens so: sorted by expert, or those that a mask picks. It is kept as
    though no element had been moved: what each is does not depend on where it was moved to.

    Attributes:
        tensor: All elements in the order that they come from.
        axis: The axis along which they were moved.
        source: An object for each order that data decided; the same object, the same order.
        order: Every position that the order is computed from.
        picked: Planes of `tensor`'s rank 1, what decides whether each element is there at all;
            ``None``: all are, so that their number is known.
        places: `tensor` says, for each element before it was moved, where it is now.
    """

    tensor: Tensor
    axis: int
    source: object
    order: Words
    picked: tuple[Array, ...] | None = None
    places: bool = False

    def loose(self) -> Tensor | Unshaped:
        """The same where nothing is known of the order: any element may be at any place."""
        words = join_words(self)
        if self.picked is not None:
            return Unshaped(words)
        joined = reduce_bits(self.tensor, [self.axis])
        bits = [plane | np.uint64(word) for plane, word in zip(joined, self.order, strict=True)]
        return unknown(self.tensor.shape, self.tensor.dtype, bits)


Value = Tensor | Unshaped | Sequenced | Reordered


def lift(plane: Array, rank: int) -> Array:
    """`plane` with leading axes of size 1 up to `rank`."""
    return plane.reshape((1,) * (rank - plane.ndim) + plane.shape)


def compress(plane: Array) -> Array:
    """`plane` with every axis along which nothing changes cut to size 1."""
    for axis, dim in enumerate(plane.shape):
        if dim > 1:
            before = (slice(None),) * axis
            first, last = plane[(*before, slice(0, 1))], plane[(*before, slice(dim - 1, dim))]
            # Of a large weight this says so without a look at all of it.
            if (last == first).all() and (plane == first).all():
                plane = first
    return plane


def expand(plane: Array, shape: Sequence[int], axes: Iterable[int]) -> Array:
    """`plane` with the given `axes` widened to the sizes of `shape`."""
    target = list(plane.shape)
    for axis in axes:
        target[axis] = shape[axis]
    return np.broadcast_to(plane, target)


def no_bits(rank: int, words: int) -> tuple[Array, ...]:
    """Planes that no position reaches."""
    return (np.zeros((1,) * rank, np.uint64),) * words


def broadcast_words(words: Words, rank: int) -> tuple[Array, ...]:
    """Planes in which every element is reached by the positions of `words`."""
    return tuple(np.full((1,) * rank, word, np.uint64) for word in words)


def constant(array: Array, words: int) -> Tensor:
    """A tensor all of whose values are known."""
    array = np.asarray(array)
    plane = compress(array)
    known = np.ones((1,) * array.ndim, bool)
    return Tensor(array.shape, array.dtype, no_bits(array.ndim, words), known, plane, plane)


def unknown(shape: Sequence[int], dtype: Any, bits: Sequence[Array]) -> Tensor:
    """A tensor of data: only who reaches it is known. `bits` may be of lower rank."""
    shape = tuple(shape)
    rank = len(shape)
    low = np.zeros((1,) * rank, dtype)
    planes = tuple(compress(lift(plane, rank)) for plane in bits)
    return Tensor(shape, np.dtype(dtype), planes, np.zeros((1,) * rank, bool), low, low)


def make(
    shape: Sequence[int],
    dtype: Any,
    bits: Sequence[Array],
    known: Array,
    low: Array,
    high: Array | None = None,
    *,
    void: Array | None = None,
) -> Tensor:
    """A tensor from planes of any lower rank; clears the bits where the value is known."""
    shape, dtype = tuple(shape), np.dtype(dtype)
    rank = len(shape)
    known = compress(lift(np.asarray(known, bool), rank))
    if not known.any():
        known = known[(slice(0, 1),) * rank]
    low = np.asarray(low)
    same = high is None or high is low
    low = compress(lift(low if low.dtype == dtype else low.astype(dtype), rank))
    if not same:
        assert high is not None  # `same` says so
        high = compress(lift(high if high.dtype == dtype else high.astype(dtype), rank))
        if high.shape == low.shape and np.array_equal(high, low, equal_nan=_is_float(dtype)):
            high = low
    else:
        high = low
    planes = tuple(lift(plane, rank) for plane in bits)
    if known.any():
        planes = tuple(np.where(known, np.uint64(0), plane) for plane in planes)
    if void is not None:
        void = compress(lift(np.asarray(void, bool), rank) & ~known)
        void = void if void.any() else None
    return Tensor(shape, dtype, tuple(compress(plane) for plane in planes), known, low, high, void)


def apply(
    tensor: Tensor, move: Callable[[Array], Array], shape: Sequence[int], dtype: Any = None
) -> Tensor:
    """Move every plane in the same way: `move` takes a plane and returns the moved plane."""
    low = move(tensor.low)
    high = low if tensor.high is tensor.low else move(tensor.high)
    bits = tuple(move(plane) for plane in tensor.bits)
    void = None if tensor.void is None else move(tensor.void)
    return make(shape, dtype or tensor.dtype, bits, move(tensor.known), low, high, void=void)


def reduce_bits(tensor: Tensor, axes: Iterable[int], keep: Array | None = None) -> list[Array]:
    """Join the bits along `axes`, kept with size 1; only where the plane `keep` says so."""
    axes = tuple(axes)
    joined = []
    for plane in tensor.bits:
        if keep is not None:
            plane = np.where(keep, plane, np.uint64(0))
        live = tuple(axis for axis in axes if plane.shape[axis] != 1)
        joined.append(np.bitwise_or.reduce(plane, axis=live, keepdims=True) if live else plane)
    return joined


def join_words(value: Value) -> Words:
    """Every position that can reach any element."""
    if isinstance(value, Unshaped):
        return value.words
    if isinstance(value, Reordered):
        # What picks elements is a part of what orders them.
        own = join_words(value.tensor)
        return tuple(a | b for a, b in zip(own, value.order, strict=True))
    if isinstance(value, Sequenced):
        words: Words = ()
        for item in value.items:
            item_words = join_words(item)
            pairs = zip(words or (0,) * len(item_words), item_words, strict=True)
            words = tuple(a | b for a, b in pairs) or words
        return words
    if value.size == 0:
        return (0,) * len(value.bits)
    return tuple(int(np.bitwise_or.reduce(plane, axis=None)) for plane in value.bits)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return np.issubdtype(dtype, np.floating)
