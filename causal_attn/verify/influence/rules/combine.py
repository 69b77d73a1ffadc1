"""Two tensors made one, element by element: bits join, known values are computed, masks are kept.

A known infinity that is added, and a known zero that multiplies, decide the result whatever the
data is. That is true of finite data only: NaN or infinity in the data passes a zero weight
(``0 * NaN``), and the proof says nothing about such inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from causal_attn.verify.influence.tensor import (
    SMALLEST_OFFSET,
    Array,
    Tensor,
    lift,
    make,
)

__all__ = [
    "Absorb",
    "Binary",
    "add",
    "bounded",
    "cast",
    "divide",
    "lifted",
    "merge",
    "multiply",
    "opaque",
    "select",
    "subtract",
    "with_constants",
]

Binary = Callable[..., Array]
Absorb = Callable[[Tensor, Tensor], tuple[Array, Array]]

_NARROW = ("float8_", "float6_", "float4_")


def opaque(tensors: list[Tensor], dtype: np.dtype[np.generic] | None = None) -> Tensor:
    """An elementwise function of broadcast tensors of which nothing more is known."""
    shape = _broadcast([tensor.shape for tensor in tensors])
    rank = len(shape)
    dtype = dtype or tensors[0].dtype
    bits = [lift(plane, rank) for plane in tensors[0].bits]
    for tensor in tensors[1:]:
        bits = [a | lift(b, rank) for a, b in zip(bits, tensor.bits, strict=True)]
    return make(shape, dtype, bits, np.zeros((), bool), np.zeros((), dtype))


def merge(a: Tensor, b: Tensor, function: Binary, absorb: Absorb | None = None) -> Tensor:
    """A function of two tensors: computed where both are known or where one of them decides."""
    shape = _broadcast([a.shape, b.shape])
    rank = len(shape)
    a, b = lifted(a, rank), lifted(b, rank)
    with np.errstate(all="ignore"):
        low = np.asarray(function(a.low, b.low))
    known = a.known & b.known
    bits = [x | y for x, y in zip(a.bits, b.bits, strict=True)]
    if absorb is not None:
        decided, value = absorb(a, b)
        decided = decided & ~known
        if decided.any():
            low = np.where(decided, value.astype(low.dtype), low)
            known = known | decided
    low = np.where(known, low, np.zeros((), low.dtype))
    return make(shape, low.dtype, bits, known, low)


def add(a: Tensor, b: Tensor) -> Tensor:
    """Sum; a known infinity decides, a known number becomes the constant under the data."""
    return _with_offsets(merge(a, b, np.add, _infinite), a, b, np.add, _same)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """Difference; see `add`."""
    return _with_offsets(merge(a, b, np.subtract, _minus_infinite), a, b, np.subtract, _swapped)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Product; a known zero decides, and what is zero or NaN stays so."""
    product = merge(a, b, np.multiply, _zero_factor)
    if a.void is not None or b.void is not None:
        a, b = lifted(a, product.rank), lifted(b, product.rank)
        live = ~(a.nought | b.nought)
        shown = (live | _void(a), live | _void(b))
        bits = [
            np.where(shown[0], x, np.uint64(0)) | np.where(shown[1], y, np.uint64(0))
            for x, y in zip(a.bits, b.bits, strict=True)
        ]
        void = _void(a) | _void(b)
        known = product.known & ~void
        return make(product.shape, product.dtype, bits, known, product.low, void=void)
    for scaled, factor in ((a, b), (b, a)):
        if scaled.low.any() and not scaled.known.all() and factor.known.all():
            return _scaled(product, scaled, factor, np.multiply)
    return product


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Quotient; a known zero over data is zero."""
    integer = a.dtype.kind in "iu"
    quotient = merge(a, b, _truncated if integer else np.divide, _zero_numerator)
    if a.void is not None:
        void = lifted(a, quotient.rank).void
        return make(
            quotient.shape, quotient.dtype, quotient.bits, quotient.known, quotient.low, void=void
        )
    if a.low.any() and not a.known.all() and b.known.all() and not integer:
        return _scaled(quotient, a, b, np.divide)
    return quotient


def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where the condition holds, else ``b``; a known condition takes one side only."""
    shape = _broadcast([condition.shape, a.shape, b.shape])
    rank = len(shape)
    c, a, b = (lifted(tensor, rank) for tensor in (condition, a, b))
    truth = c.low.astype(bool)
    # Zeros of two signs are two values: a division tells them apart.
    equal = a.known & b.known & (a.low == b.low) & (_negative(a.low) == _negative(b.low))
    known = np.where(c.known, np.where(truth, a.known, b.known), equal)
    low = np.where(c.known, np.where(truth, a.low, b.low), np.minimum(a.low, b.low))
    high = np.where(c.known, np.where(truth, a.high, b.high), np.maximum(a.high, b.high))
    bits = [
        np.where(c.known, np.where(truth, x, y), x | y | z)
        for x, y, z in zip(a.bits, b.bits, c.bits, strict=True)
    ]
    void = None
    if a.void is not None or b.void is not None:
        either = np.where(truth, _void(a), _void(b))
        void = np.where(c.known, either, a.nought & b.nought)
    return make(shape, a.dtype, bits, known, low, high, void=void)


def cast(tensor: Tensor, dtype: np.dtype[np.generic]) -> Tensor:
    """Conversion; a mask constant that overflows becomes infinite, as it does at run time."""
    if dtype.name.startswith(_NARROW):
        # They saturate or not by an attribute and a kernel; only zero is the same for all.
        return make(tensor.shape, dtype, tensor.bits, tensor.zero, np.zeros((), dtype))
    with np.errstate(all="ignore"):
        low = tensor.low.astype(dtype)
        high = low if tensor.high is tensor.low else tensor.high.astype(dtype)
    void = tensor.void if dtype.kind not in "iub" else None
    return make(tensor.shape, dtype, tensor.bits, tensor.known, low, high, void=void)


def bounded(tensor: Tensor, other: Tensor, extreme: Binary) -> Tensor:
    """Element by element the larger or smaller of two.

    ``extreme(data + a, b)`` differs from ``extreme(a, b)`` by no more than the data does from
    zero, so the constants under the data go through `extreme` as values do: what is lowest stays
    lowest.
    """
    absorb = _extreme(1.0 if extreme is np.maximum else -1.0)
    result = merge(tensor, other, extreme, absorb)
    return _with_offsets(result, tensor, other, extreme, _same)


def _void(tensor: Tensor) -> Array:
    return np.zeros((), bool) if tensor.void is None else tensor.void


def lifted(tensor: Tensor, rank: int) -> Tensor:
    """`tensor` with axes of one in front, to `rank`."""
    if tensor.rank == rank:
        return tensor
    low = lift(tensor.low, rank)
    return Tensor(
        (1,) * (rank - tensor.rank) + tensor.shape,
        tensor.dtype,
        tuple(lift(plane, rank) for plane in tensor.bits),
        lift(tensor.known, rank),
        low,
        low if tensor.high is tensor.low else lift(tensor.high, rank),
        None if tensor.void is None else lift(tensor.void, rank),
    )


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return np.broadcast_shapes(*shapes)


def _with_offsets(
    result: Tensor, a: Tensor, b: Tensor, function: Binary, ends: Callable[[Tensor], list[Array]]
) -> Tensor:
    if not (a.low.any() or b.low.any()) or result.known.all() or result.dtype.kind in "iub":
        return result
    a, b = lifted(a, result.rank), lifted(b, result.rank)
    with np.errstate(all="ignore"):
        low = function(a.low, ends(b)[0])
        high = function(a.high, ends(b)[1])
    return with_constants(result, low, high)


def _scaled(result: Tensor, data: Tensor, factor: Tensor, function: Binary) -> Tensor:
    data, factor = lifted(data, result.rank), lifted(factor, result.rank)
    with np.errstate(all="ignore"):
        ends = (function(data.low, factor.low), function(data.high, factor.low))
        return with_constants(result, np.minimum(*ends), np.maximum(*ends))


def with_constants(result: Tensor, low: Array, high: Array) -> Tensor:
    """`result` with constants under its unknown elements; small ones count as data."""
    nothing = np.zeros((), result.dtype)
    with np.errstate(invalid="ignore"):
        low = np.where(np.abs(low) < SMALLEST_OFFSET, nothing, low)
        high = np.where(np.abs(high) < SMALLEST_OFFSET, nothing, high)
    low = np.where(np.isnan(low), -np.inf, low)
    high = np.where(np.isnan(high), np.inf, high)
    low = np.where(result.known, result.low, low)
    high = np.where(result.known, result.low, high)
    return make(result.shape, result.dtype, result.bits, result.known, low, high)


def _same(b: Tensor) -> list[Array]:
    return [b.low, b.high]


def _swapped(b: Tensor) -> list[Array]:
    return [b.high, b.low]


def _infinite(a: Tensor, b: Tensor) -> tuple[Array, Array]:
    a_decides, b_decides = a.known & _isinf(a.low), b.known & _isinf(b.low)
    return a_decides | b_decides, np.where(a_decides, a.low, b.low)


def _minus_infinite(a: Tensor, b: Tensor) -> tuple[Array, Array]:
    a_decides, b_decides = a.known & _isinf(a.low), b.known & _isinf(b.low)
    if b.dtype.kind in "iub":
        return a_decides, a.low
    return a_decides | b_decides, np.where(a_decides, a.low, -b.low)


def _zero_factor(a: Tensor, b: Tensor) -> tuple[Array, Array]:
    return a.zero | b.zero, np.zeros((), a.dtype)


def _zero_numerator(a: Tensor, b: Tensor) -> tuple[Array, Array]:
    return a.zero | (b.known & _isinf(b.low)), np.zeros((), a.dtype)


def _negative(values: Array) -> Array:
    if values.dtype.kind in "iub":
        return np.zeros((), bool)
    return np.signbit(values)


def _isinf(values: Array) -> Array:
    return np.isinf(values) if values.dtype.kind not in "iub" else np.zeros((), bool)


def _truncated(a: Array, b: Array) -> Array:
    # ONNX divides integers towards zero, numpy towards minus infinity.
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    quotient: Array = (np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)).astype(a.dtype)
    return quotient


def _extreme(sign: float) -> Absorb:
    def absorb(a: Tensor, b: Tensor) -> tuple[Array, Array]:
        if a.dtype.kind in "iub":
            return np.zeros((), bool), np.zeros((), a.dtype)
        decides = (a.known & (a.low == sign * np.inf)) | (b.known & (b.low == sign * np.inf))
        return decides, np.full((), sign * np.inf, a.dtype)

    return absorb
