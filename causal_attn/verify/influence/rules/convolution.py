"""Convolution and pooling: each output sees the inputs under its taps, and no others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.tensor import Array, Tensor, make, reduce_bits, unknown

__all__: list[str] = []

Places = Callable[[int, int], tuple[Array, Array]]


def _shifted(plane: Array, axis: int, size: int, outputs: Array, inputs: Array) -> Array:
    """`plane` with ``result[outputs] = plane[inputs]`` along one axis and nothing elsewhere."""
    if not plane.any():
        return plane if plane.shape[axis] == 1 else plane[(slice(None),) * axis + (slice(0, 1),)]
    target = list(plane.shape)
    target[axis] = size
    result = np.zeros(target, plane.dtype)
    source = plane if plane.shape[axis] == 1 else np.take(plane, inputs, axis)
    np.moveaxis(result, axis, 0)[outputs] = np.moveaxis(source, axis, 0)
    return result


def _receptive(
    data: Tensor, kernel: Sequence[int], sizes: Sequence[int], places: Places, live: Array
) -> list[Array]:
    """Join the planes of every tap that is not known to be zero.

    Args:
        data: ``[batch, channels, spatial...]``.
        kernel: Taps along each spatial axis.
        sizes: Output sizes along each spatial axis.
        places: Output and input places that a tap of an axis connects.
        live: Which taps may be other than zero, of shape `kernel` or broadcastable to it.
    """
    live = np.broadcast_to(live, tuple(kernel))
    results = []
    for plane in data.bits:
        joined = np.zeros((1,) * data.rank, np.uint64)
        if plane.any():
            if live.all():
                joined = plane
                for spatial, count in enumerate(kernel):
                    parts = [
                        _shifted(joined, 2 + spatial, sizes[spatial], *places(spatial, tap))
                        for tap in range(count)
                    ]
                    joined = np.bitwise_or.reduce(np.broadcast_arrays(*parts))
            else:
                for taps in itertools.product(*(range(count) for count in kernel)):
                    if live[taps]:
                        moved = plane
                        for spatial, tap in enumerate(taps):
                            at = places(spatial, tap)
                            moved = _shifted(moved, 2 + spatial, sizes[spatial], *at)
                        joined = joined | moved
        results.append(joined)
    return results


def _geometry(call: Call, data: Tensor, kernel: Sequence[int]) -> tuple[list[int], Places]:
    spatial = data.shape[2:]
    count = len(spatial)
    strides = call.attr("strides") or [1] * count
    dilations = call.attr("dilations") or [1] * count
    pads = call.attr("pads") or [0] * (2 * count)
    auto = call.attr("auto_pad", "NOTSET")
    begins, sizes = [], []
    for axis, dim in enumerate(spatial):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        begin, end = pads[axis], pads[axis + count]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-dim // strides[axis]) - 1) * strides[axis] + reach - dim)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
            end = total - begin
        elif auto == "VALID":
            begin = end = 0
        room = dim + begin + end - reach
        steps = -(-room // strides[axis]) if call.attr("ceil_mode", 0) else room // strides[axis]
        if call.attr("ceil_mode", 0) and steps * strides[axis] >= dim + begin:
            steps -= 1  # a window that starts in the padding at the end is left out
        begins.append(begin)
        sizes.append(steps + 1)

    def places(axis: int, tap: int) -> tuple[Array, Array]:
        outputs = np.arange(sizes[axis])
        inputs = outputs * strides[axis] - begins[axis] + tap * dilations[axis]
        inside = (inputs >= 0) & (inputs < spatial[axis])
        return outputs[inside], inputs[inside]

    return sizes, places


def _mixed_channels(data: Tensor, groups: int, outputs: int) -> Tensor:
    """Channels joined group by group, as many as come out."""
    channels = data.shape[1]
    shape = (data.shape[0], outputs, *data.shape[2:])
    if groups == 1 or all(plane.shape[1] == 1 for plane in data.bits):
        return unknown(shape, data.dtype, reduce_bits(data, [1]))
    bits = []
    for plane in data.bits:
        if plane.shape[1] != 1:
            split = plane.reshape(plane.shape[0], groups, channels // groups, *plane.shape[2:])
            plane = np.repeat(np.bitwise_or.reduce(split, axis=2), outputs // groups, axis=1)
        bits.append(plane)
    return unknown(shape, data.dtype, bits)


@rule("Conv", "ConvInteger", "QLinearConv", fold=True)
@rule("FusedConv", domain=MICROSOFT)
def _conv(call: Call) -> list[Tensor]:
    quantized = call.node.op == "QLinearConv"
    data, weight = call.tensor(0), call.tensor(3 if quantized else 1)
    groups = call.attr("group", 1)
    kernel = weight.shape[2:]
    sizes, places = _geometry(call, data, kernel)
    mixed = _mixed_channels(data, groups, weight.shape[0])
    live = _live_taps(weight) if call.node.op in ("Conv", "FusedConv") else np.ones((), bool)
    bits = _receptive(mixed, kernel, sizes, places, live)
    dtype = {"ConvInteger": np.dtype(np.int32)}.get(call.node.op, data.dtype)
    shape = (data.shape[0], weight.shape[0], *sizes)
    result = unknown(shape, dtype, bits)
    bias = call.optional(2) if call.node.op == "Conv" else None
    if call.node.op == "Conv" and (bias is None or bias.zero.all()):
        # Softmax weights mixed across heads: what no head sees stays unseen.
        may_be_other = unknown(data.shape, data.dtype, [(~data.zero).astype(np.uint64)])
        other = _mixed_channels(may_be_other, groups, weight.shape[0])
        (reached,) = _receptive(other, kernel, sizes, places, live)
        result = make(shape, dtype, bits, known=reached == 0, low=np.zeros((), dtype))
    return [call.reached_by(result, *range(1, len(call.inputs)))]


def _live_taps(weight: Tensor) -> Array:
    return np.asarray(~weight.zero.all(axis=(0, 1)))


@rule("ConvTranspose", fold=True)
def _conv_transpose(call: Call) -> list[Tensor]:
    data, weight = call.tensor(0), call.tensor(1)
    spatial, kernel = data.shape[2:], weight.shape[2:]
    count = len(spatial)
    groups = call.attr("group", 1)
    strides = call.attr("strides") or [1] * count
    dilations = call.attr("dilations") or [1] * count
    extra = call.attr("output_padding") or [0] * count
    pads = list(call.attr("pads") or [0] * (2 * count))
    if call.attr("output_shape") or call.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise DataDependent("its padding is derived from its output shape")
    sizes = [
        strides[a] * (spatial[a] - 1) + extra[a] + dilations[a] * (kernel[a] - 1) + 1
        - pads[a] - pads[a + count]
        for a in range(count)
    ]  # fmt: skip

    def places(axis: int, tap: int) -> tuple[Array, Array]:
        inputs = np.arange(spatial[axis])
        outputs = inputs * strides[axis] - pads[axis] + tap * dilations[axis]
        inside = (outputs >= 0) & (outputs < sizes[axis])
        return outputs[inside], inputs[inside]

    channels = weight.shape[1] * groups
    mixed = _mixed_channels(data, groups, channels)
    bits = _receptive(mixed, kernel, sizes, places, _live_taps(weight))
    result = unknown((data.shape[0], channels, *sizes), data.dtype, bits)
    return [call.reached_by(result, 1, 2)]


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(call: Call) -> list[Tensor]:
    data = call.tensor(0)
    kernel = call.attr("kernel_shape")
    sizes, places = _geometry(call, data, kernel)
    bits = _receptive(data, kernel, sizes, places, np.ones((), bool))
    shape = (*data.shape[:2], *sizes)
    return [unknown(shape, data.dtype, bits), unknown(shape, np.int64, bits)]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> list[Tensor]:
    data = call.tensor(0)
    axes = range(2, data.rank)
    shape = (*data.shape[:2], *(1,) * (data.rank - 2))
    return [unknown(shape, data.dtype, reduce_bits(data, axes))]
