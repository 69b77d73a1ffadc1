"""Quantization: elementwise with a stored scale, a join of everything with a dynamic one.

A known zero stays known through quantization, and so does a mask constant: one scale that covers
scores and mask may leave the scores nothing to say, but what it hides stays hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.origin import POSITIVE
from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.combine import (
    add,
    multiply,
    opaque,
    select,
    with_constants,
)
from causal_attn.verify.influence.rules.movement import concat, insert_axes, reshape, transpose
from causal_attn.verify.influence.rules.products import matmul
from causal_attn.verify.influence.rules.softmax import softmax
from causal_attn.verify.influence.tensor import Array, Tensor, make, reduce_bits, unknown

__all__ = ["dequantize", "quantize"]


def quantize(
    data: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: np.dtype[Any], axis: int = 1
) -> Tensor:
    """``saturate(round(data / scale) + zero_point)``; scales of one element or one an `axis`."""
    scale = _aligned(scale, data, axis)
    zero = _aligned(zero_point, data, axis) if zero_point is not None else None
    joined = opaque([item for item in (data, scale, zero) if item is not None], dtype)
    known_scale = scale.known if zero is None else scale.known & zero.known
    offset = np.float64(0) if zero is None else zero.low.astype(np.float64)

    def moved(values: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.rint(values.astype(np.float64) / scale.low.astype(np.float64)) + offset
        result = np.where(known_scale, result, offset)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            result = np.clip(np.nan_to_num(result), limits.min, limits.max)
        return np.asarray(result.astype(dtype))

    # Zero over any scale is zero, so a known zero needs no known scale.
    zero_known = np.ones((), bool) if zero is None else zero.known
    known = data.known & (known_scale | (zero_known & (data.low == 0)))
    if dtype.kind not in "iu":
        # Narrow floats saturate or not by an attribute and a kernel; zero is zero for all.
        known = data.zero & zero_known & (offset == 0)
        return make(data.shape, dtype, joined.bits, known, np.zeros((), dtype))
    return make(data.shape, dtype, joined.bits, known, moved(data.low), moved(data.high))


def dequantize(data: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int = 1) -> Tensor:
    """``(data - zero_point) * scale``; scales of one element or one an `axis`."""
    scale = _aligned(scale, data, axis)
    zero = _aligned(zero_point, data, axis) if zero_point is not None else None
    joined = opaque([item for item in (data, scale, zero) if item is not None], scale.dtype)
    offset = np.float64(0) if zero is None else zero.low.astype(np.float64)
    factor = scale.low.astype(np.float64)
    certain = scale.known if zero is None else scale.known & zero.known
    zero_known = np.ones((), bool) if zero is None else zero.known
    with np.errstate(all="ignore"):
        low = (data.low.astype(np.float64) - offset) * factor
        high = (data.high.astype(np.float64) - offset) * factor
        is_zero = zero_known & (data.low.astype(np.float64) == offset)
        low, high = np.where(certain, low, 0.0), np.where(certain, high, 0.0)
        known = data.known & (certain | is_zero)
        result = make(data.shape, scale.dtype, joined.bits, known, np.where(known, low, 0.0))
        if data.dtype.kind not in "iu" or result.known.all():
            return result
        ends = (low.astype(scale.dtype), high.astype(scale.dtype))
    return with_constants(result, np.minimum(*ends), np.maximum(*ends))


def _aligned(stat: Tensor, data: Tensor, axis: int) -> Tensor:
    """A scale or zero point, shaped to broadcast against the data."""
    if stat.size == 1:
        return reshape(stat, (1,) * data.rank)
    if stat.rank == 1:
        axis %= data.rank
        return reshape(stat, [stat.size if at == axis else 1 for at in range(data.rank)])
    if any(plane.any() for plane in stat.bits):
        raise DataDependent("its block scales depend on data")
    # Blocks of a weight: no input reaches them and the values are not looked at.
    ones = (1,) * data.rank
    return unknown(ones, stat.dtype, [plane.reshape(-1)[:1].reshape(ones) for plane in stat.bits])


@rule("QuantizeLinear")
@rule("QuantizeLinear", domain=MICROSOFT)
def _quantize(call: Call) -> list[Tensor]:
    zero_point = call.optional(2)
    number = call.attr("output_dtype", 0)
    dtype = (
        zero_point.dtype if zero_point else numpy_dtype(number) if number else np.dtype("uint8")
    )
    axis = call.attr("axis", 1)
    data, scale = call.tensor(0), call.tensor(1)
    result = quantize(data, scale, zero_point, dtype, axis)
    if call.origins[0].wild:
        result = call.doubted(result, data.known, 0, "a number that may be NaN")
    if call.origins[1].wild or call.origins[1].sign != POSITIVE:
        result = call.doubted(result, result.known, 1, "0 divided by what may be 0")
    return [result]


@rule("DequantizeLinear")
@rule("DequantizeLinear", domain=MICROSOFT)
def _dequantize(call: Call) -> list[Tensor]:
    axis = call.attr("axis", 1)
    result = dequantize(call.tensor(0), call.tensor(1), call.optional(2), axis)
    if call.origins[1].wild:
        result = call.doubted(result, result.known, 1, "0 times what may be NaN")
    return [result]


@rule("DynamicQuantizeLinear", fold=True)
def _dynamic_quantize(call: Call) -> list[Tensor]:
    # One scale for the whole tensor is taken from all of it: the future scales the past.
    data = call.tensor(0)
    joined = reduce_bits(data, range(data.rank))
    scalar = [plane.reshape(()) for plane in joined]
    return [
        unknown(data.shape, np.uint8, joined),
        unknown((), np.float32, scalar),
        unknown((), np.uint8, scalar),
    ]


def _read(call: Call, at: int) -> Tensor:
    """The float behind a quantized input and its scale and zero point after it."""
    return dequantize(call.tensor(at), call.tensor(at + 1), call.optional(at + 2))


def _written(call: Call, result: Tensor, at: int, like: Tensor) -> list[Tensor]:
    """`result`, quantized with the scale and zero point at `at`."""
    return [quantize(result, call.tensor(at), call.optional(at + 1), like.dtype)]


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _binary(call: Call) -> list[Tensor]:
    function = add if call.node.op == "QLinearAdd" else multiply
    return _written(call, function(_read(call, 0), _read(call, 3)), 6, call.tensor(0))


@rule("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def _unary(call: Call) -> list[Tensor]:
    return _written(call, opaque([_read(call, 0)]), 3, call.tensor(0))


@rule("QLinearSoftmax", domain=MICROSOFT)
def _softmax(call: Call) -> list[Tensor]:
    scores = _read(call, 0)
    axis = call.attr("axis", -1) % scores.rank
    if call.attr("opset", 13) < 13 and axis != scores.rank - 1:
        raise DataDependent("it flattens axes, as softmax below opset 13 does")
    return _written(call, softmax(call.mode, scores, axis, empty=np.nan), 3, call.tensor(0))


@rule("QLinearConcat", domain=MICROSOFT)
def _concat(call: Call) -> list[Tensor]:
    tensors = [_read(call, at) for at in range(2, len(call.inputs), 3)]
    return _written(call, concat(tensors, call.attr("axis")), 0, call.tensor(2))


@rule("QLinearWhere", domain=MICROSOFT)
def _where(call: Call) -> list[Tensor]:
    result = select(call.tensor(0), _read(call, 1), _read(call, 4))
    return _written(call, result, 7, call.tensor(1))


@rule("QGemm", domain=MICROSOFT)
def _gemm(call: Call) -> list[Tensor]:
    a, b = _read(call, 0), dequantize(call.tensor(3), call.tensor(4), call.optional(5))
    a = transpose(a, (1, 0)) if call.attr("transA", 0) else a
    b = transpose(b, (1, 0)) if call.attr("transB", 0) else b
    result = matmul(a, b)
    if (bias := call.optional(6)) is not None:
        row = bias if bias.rank > 1 else insert_axes(bias, [0])
        result = opaque([result, row])
    return _written(call, result, 7, call.tensor(0)) if call.has(7) else [result]
