"""Quantization: elementwise with a stored scale, a join of everything with a dynamic one."""

from __future__ import annotations

import numpy as np

from causal_attn.verify.influence.elementwise import add, cast, divide, multiply, subtract
from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.movement import reshape
from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.tensor import Tensor, make, reduce_bits, unknown

__all__: list[str] = []


def _aligned(call: Call, stat: Tensor, data: Tensor) -> Tensor:
    """A scale or zero point, shaped to broadcast against the data."""
    if stat.size == 1:
        return reshape(stat, (1,) * data.rank)
    if stat.rank == 1:
        axis = call.attr("axis", 1) % data.rank
        return reshape(stat, [stat.size if at == axis else 1 for at in range(data.rank)])
    if any(plane.any() for plane in stat.bits):
        raise DataDependent("its block scales depend on data")
    # Blocks of a weight: no input reaches them and the values are not looked at.
    return call.silent((1,) * data.rank, stat.dtype)


@rule("QuantizeLinear")
@rule("QuantizeLinear", domain=MICROSOFT)
def _quantize(call: Call) -> list[Tensor]:
    data = call.tensor(0)
    scale = _aligned(call, call.tensor(1), data)
    zero_point = call.optional(2)
    number = call.attr("output_dtype", 0)
    dtype = (
        zero_point.dtype if zero_point else numpy_dtype(number) if number else np.dtype("uint8")
    )
    scaled = divide(data, cast(scale, data.dtype))
    if zero_point is not None:
        scaled = add(_rounded(scaled), cast(_aligned(call, zero_point, data), data.dtype))
    if dtype.kind not in "iu":
        return [
            cast(make(scaled.shape, scaled.dtype, scaled.bits, scaled.known, scaled.low), dtype)
        ]
    limits = np.iinfo(dtype)
    low = np.clip(np.nan_to_num(np.rint(scaled.low)), limits.min, limits.max).astype(dtype)
    low = np.where(scaled.known, low, np.zeros((), dtype))
    return [make(scaled.shape, dtype, scaled.bits, scaled.known, low)]


def _rounded(tensor: Tensor) -> Tensor:
    low = np.where(tensor.known, np.rint(tensor.low), np.zeros((), tensor.dtype))
    return make(tensor.shape, tensor.dtype, tensor.bits, tensor.known, low)


@rule("DequantizeLinear")
@rule("DequantizeLinear", domain=MICROSOFT)
def _dequantize(call: Call) -> list[Tensor]:
    data = call.tensor(0)
    scale = _aligned(call, call.tensor(1), data)
    wide = cast(data, scale.dtype)
    zero_point = call.optional(2)
    if zero_point is not None:
        wide = subtract(wide, cast(_aligned(call, zero_point, data), scale.dtype))
    return [multiply(wide, scale)]


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
