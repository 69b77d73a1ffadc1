"""Bounds of arithmetic, activations and selection, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.bounds.extent import Extent, hull, product
from causal_attn.verify.influence.bounds.normed import unit_rows
from causal_attn.verify.influence.bounds.step import Step, bound
from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.registry import MICROSOFT
from causal_attn.verify.influence.tensor import SMALLEST_OFFSET, Array, Tensor, lift

__all__ = ["summed"]


def _offset(tensor: Tensor) -> bool:
    """Some unknown element has a constant of a mask under it."""
    return not tensor.plain and not tensor.known.all() and bool(tensor.low.any())


def _norm_axes(step: Step, rank: int) -> list[frozenset[int]]:
    """Axes of the result along which a norm of an input is known."""
    found = []
    for at, extent in enumerate(step.extents):
        if step.has(at) and extent.axes:
            lead = rank - step.tensor(at).rank
            found.append(frozenset(axis + lead for axis in extent.axes))
    return found or [frozenset({rank - 1})]


def _length(step: Step, at: int, axes: frozenset[int]) -> float:
    """Length of an input along `axes` of the result that it is broadcast to."""
    tensor, shape = step.tensor(at), step.output().shape
    lead = len(shape) - tensor.rank
    own = {axis - lead for axis in axes if axis >= lead}
    repeated = math.prod(
        shape[axis] for axis in axes if axis < lead or tensor.shape[axis - lead] == 1
    )
    return step.extents[at].length(tensor.shape, own) * math.sqrt(repeated)


def summed(step: Step, signs: list[float]) -> Extent:
    """Of a sum of inputs times `signs`."""
    low = high = 0.0
    for at, sign in enumerate(signs):
        ends = product((step.extents[at].low, step.extents[at].high), (sign, sign))
        low, high = low + ends[0], high + ends[1]
    result = step.output()
    if _cancels(step, signs):
        # What is left of constants that cancel becomes data.
        return Extent(low - SMALLEST_OFFSET, high + SMALLEST_OFFSET)
    if not result.rank:
        return Extent(low, high)
    axes = _norm_axes(step, result.rank)[0]
    return Extent(low, high, sum(_length(step, at, axes) for at in range(len(signs))), axes)


def _cancels(step: Step, signs: list[float]) -> bool:
    """Whether constants add up to something that is too small to count as one."""
    tensors = [step.tensor(at) for at in range(len(signs))]
    if all(tensor.plain for tensor in tensors):
        return False
    rank = max(tensor.rank for tensor in tensors)
    for flipped in (False, True):
        total: Array = np.zeros((1,) * rank)
        for tensor, sign in zip(tensors, signs, strict=True):
            end = tensor.high if (sign < 0) != flipped else tensor.low
            end = lift(end.astype(np.float64), rank)
            total = total + sign * np.where(np.abs(end) < SMALLEST_OFFSET, 0.0, end)
        if (np.isnan(total) | ((total != 0) & (np.abs(total) < SMALLEST_OFFSET))).any():
            return True
    return False


def _masking(step: Step, at: int) -> bool:
    tensor = step.tensor(at)
    return bool((tensor.known & (np.abs(tensor.low.astype(np.float64)) >= SMALLEST_OFFSET)).any())


@bound("Add", "Sum")
def _add(step: Step) -> list[Extent]:
    return [summed(step, [1.0] * len(step.inputs))]


@bound("Sub")
def _sub(step: Step) -> list[Extent]:
    return [summed(step, [1.0, -1.0])]


@bound("Mul")
def _mul(step: Step) -> list[Extent]:
    result = step.output()
    ends = [step.values(at) for at in (0, 1)]
    for data, factor in ((0, 1), (1, 0)):
        if _offset(step.tensor(data)) and step.tensor(factor).known.all():
            # The constants are scaled too; of the data under them this is the interval.
            extent = step.extents[data]
            low, high = product((extent.low, extent.high), ends[factor])
            return [Extent(low - SMALLEST_OFFSET, high + SMALLEST_OFFSET)]
    low, high = product(*ends)
    if step.node.inputs[0] == step.node.inputs[1]:
        low = max(low, 0.0)
    if not result.rank:
        return [Extent(low, high)]
    best = Extent(low, high)
    for axes in _norm_axes(step, result.rank):
        norm = min(
            _scale(_length(step, 0, axes), step.size(1)),
            _scale(_length(step, 1, axes), step.size(0)),
        )
        if norm < best.norm:
            best = Extent(low, high, norm, axes)
    return [_unit(step, best)]


def _scale(length: float, factor: float) -> float:
    return 0.0 if length == 0 or factor == 0 else length * factor


def _unit(step: Step, extent: Extent) -> Extent:
    """`extent`, or that of rows of a norm where the node is the last of one."""
    if step.lookup is None:
        return extent
    found = unit_rows(step.node, step.writers, step.lookup)
    if found is None:
        return extent
    length, axes = found
    return Extent(max(extent.low, -length), min(extent.high, length), length, frozenset(axes))


@bound("Div")
def _div(step: Step) -> list[Extent]:
    ends, by = step.values(0), step.values(1)
    if by[0] <= 0 <= by[1]:
        return [_unit(step, Extent())]
    inverse = (1 / by[1], 1 / by[0])
    if _offset(step.tensor(0)):
        extent = step.extents[0]
        low, high = product((extent.low, extent.high), inverse)
        return [Extent(low - SMALLEST_OFFSET, high + SMALLEST_OFFSET)]
    low, high = product(ends, inverse)
    result = step.output()
    axes = _norm_axes(step, result.rank)[0]
    norm = _scale(_length(step, 0, axes), max(map(abs, inverse)))
    return [_unit(step, Extent(low, high, norm, axes))]


@bound("Neg")
def _neg(step: Step) -> list[Extent]:
    extent = step.extents[0]
    return [replace(extent, low=-extent.high, high=-extent.low, array=None)]


@bound("Mean")
def _mean(step: Step) -> list[Extent]:
    return [hull(step.extents)]


@bound("Cast", "CastLike")
def _cast(step: Step) -> list[Extent]:
    dtype = step.output().dtype
    if dtype.kind == "b":
        return [Extent(0.0, 1.0)]
    if step.tensor(0).dtype.kind == "b":
        return [Extent(0.0, 1.0)]
    extent = step.extents[0]
    if dtype.kind in "iu" and step.tensor(0).dtype.kind not in "iub":
        return [Extent(extent.low - 1, extent.high + 1)]
    if step.node.op == "Cast" and numpy_dtype(step.attr("to")).name.startswith(
        ("float8_", "float6_", "float4_")
    ):
        return [Extent(min(extent.low, 0.0) * 2, max(extent.high, 0.0) * 2)]
    return [extent]


_LIMITED: dict[str, tuple[float, float]] = {
    "Acos": (0.0, math.pi),
    "Asin": (-math.pi / 2, math.pi / 2),
    "Atan": (-math.pi / 2, math.pi / 2),
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Hardmax": (0.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Sign": (-1.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
    "Tanh": (-1.0, 1.0),
}


@bound(*_LIMITED)
def _limited(step: Step) -> list[Extent]:
    extent = Extent(*_LIMITED[step.node.op])
    if step.node.op in ("Erf", "Tanh", "Softsign", "Sin") and not _offset(step.tensor(0)):
        # None of them is further from zero than 1.13 times what it is taken of.
        source = step.extents[0]
        if source.axes:
            extent = replace(extent, norm=1.13 * source.norm, axes=source.axes)
    return [extent]


_MONOTONE: dict[str, Callable[[float], float]] = {
    "Ceil": lambda value: value + 1,
    "Exp": lambda value: math.exp(value) if value < 700 else math.inf,
    "Floor": lambda value: value - 1,
    "Log": lambda value: math.log(value) if value > 0 else -math.inf,
    "Relu": lambda value: max(value, 0.0),
    "Round": lambda value: value,
    "Softplus": lambda value: max(value, 0.0) + (0.7 if value > -700 else 0.0),
    "Sqrt": lambda value: math.sqrt(max(value, 0.0)),
}


@bound(*_MONOTONE)
def _monotone(step: Step) -> list[Extent]:
    function = _MONOTONE[step.node.op]
    low, high = step.values(0)
    extent = Extent(*_rounded(step.node.op, _at(function, low), _at(function, high)))
    source = step.extents[0]
    if step.node.op == "Relu" and source.axes and not _offset(step.tensor(0)):
        extent = replace(extent, norm=source.norm, axes=source.axes)
    return [extent]


def _at(function: Callable[[float], float], value: float) -> float:
    if math.isinf(value) and value > 0:
        return math.inf
    return function(value) if not math.isinf(value) else function(-1e300)


def _rounded(op: str, low: float, high: float) -> tuple[float, float]:
    if op == "Softplus":
        return max(low - 0.7, 0.0), high
    return (low - 1, high + 1) if op == "Round" else (min(low, high), max(low, high))


@bound("Abs")
def _abs(step: Step) -> list[Extent]:
    low, high = step.values(0)
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    extent = Extent(least, max(abs(low), abs(high)))
    source = step.extents[0]
    if source.axes and not _offset(step.tensor(0)):
        extent = replace(extent, norm=source.norm, axes=source.axes)
    return [extent]


@bound("Elu", "Gelu", "HardSwish", "Mish", "Swish", "LeakyRelu")
@bound("Gelu", "FastGelu", "QuickGelu", "BiasGelu", domain=MICROSOFT)
def _gate(step: Step) -> list[Extent]:
    """Functions no further from zero than what they are taken of."""
    if step.attr("alpha", 1.0) > 1.0 and step.node.op in ("Elu", "LeakyRelu"):
        raise ValueError("a slope above 1")
    if step.has(1):
        total = summed(step, [1.0, 1.0])
        return [Extent(min(total.low, 0.0), max(total.high, 0.0))]
    low, high = step.values(0)
    source = step.extents[0]
    extent = Extent(min(low, 0.0), max(high, 0.0))
    if source.axes and not _offset(step.tensor(0)):
        extent = replace(extent, norm=source.norm, axes=source.axes)
    return [extent]


@bound("Reciprocal")
def _reciprocal(step: Step) -> list[Extent]:
    low, high = step.values(0)
    if low <= 0 <= high:
        return [Extent(0.0 if low == 0 else -math.inf)]
    return [Extent(1 / high, 1 / low)]


@bound("Pow")
def _pow(step: Step) -> list[Extent]:
    exponent = step.known(1)
    if exponent is None or exponent.size != 1:
        return [Extent()]
    power = float(exponent.astype(np.float64).reshape(()))
    low, high = step.values(0)
    if power > 0 and power == int(power):
        ends = (low**power, high**power) if max(-low, high) < 1e100 else (-math.inf, math.inf)
        if int(power) % 2:
            return [Extent(*ends)]
        return [Extent(0.0 if low <= 0 <= high else min(ends), max(map(abs, ends)))]
    if low > 0:
        ends = low**power, high**power
        return [Extent(min(ends), max(ends))]
    return [Extent(0.0, max(high, 0.0) ** power) if power > 0 and low >= 0 else Extent()]


@bound("Clip", "Max", "Min")
def _clamped(step: Step) -> list[Extent]:
    count = len(step.inputs)
    if step.node.op == "Clip":
        count = 1
    if any(_offset(step.tensor(at)) or _masking(step, at) for at in range(count)):
        # The constants are clamped as values are, and the data shrinks towards them.
        extents = [step.extents[at] for at in range(count)]
        both = hull(extents)
        return [
            Extent(min(both.low, 0.0) - SMALLEST_OFFSET, max(both.high, 0.0) + SMALLEST_OFFSET)
        ]
    ends = [step.values(at) for at in range(count)]
    if step.node.op == "Max":
        return [Extent(max(e[0] for e in ends), max(e[1] for e in ends))]
    if step.node.op == "Min":
        return [Extent(min(e[0] for e in ends), min(e[1] for e in ends))]
    low, high = ends[0]
    least = step.values(1) if step.has(1) else (step.attr("min", -math.inf),) * 2
    most = step.values(2) if step.has(2) else (step.attr("max", math.inf),) * 2
    low, high = max(low, least[0]), max(high, least[1])
    low, high = min(low, most[0]), min(high, most[1])
    extent, source = Extent(low, high), step.extents[0]
    return [replace(extent, norm=source.norm, axes=source.axes) if low <= 0 <= high else extent]


@bound("Where")
def _where(step: Step) -> list[Extent]:
    result = step.output()
    both = hull(step.extents[1:])
    if not result.rank:
        return [both]
    lead = result.rank
    axes = next(
        (
            frozenset(axis + lead - step.tensor(at).rank for axis in step.extents[at].axes)
            for at in (1, 2) if step.extents[at].axes
        ),
        frozenset({lead - 1}),
    )  # fmt: skip
    norm = math.hypot(_length(step, 1, axes), _length(step, 2, axes))
    return [replace(both, norm=norm, axes=axes)]


@bound("Mod")
def _mod(step: Step) -> list[Extent]:
    size = step.size(1)
    return [Extent(-size, size)]


@bound("QuantizeLinear")
@bound("DynamicQuantizeLinear")
def _quantized(step: Step) -> list[Extent]:
    dtype = step.output().dtype
    if dtype.kind not in "iu":
        return [Extent()]
    limits = np.iinfo(dtype)
    return [Extent(float(limits.min), float(limits.max)), Extent(0.0), Extent(0.0, 255.0)]


@bound("DequantizeLinear")
def _dequantized(step: Step) -> list[Extent]:
    dtype = step.tensor(0).dtype
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        spread = float(limits.max) - float(limits.min)
    else:
        spread = {"int4": 15.0, "uint4": 15.0, "int2": 3.0, "uint2": 3.0}.get(dtype.name, math.inf)
    size = spread * step.size(1)
    return [Extent(-size, size)]
