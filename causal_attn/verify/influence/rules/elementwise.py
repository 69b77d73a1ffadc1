"""Arithmetic, logic and comparison: bits join, known values are computed, masks are kept.

A known infinity that is added, and a known zero that multiplies, decide the result whatever the
data is. That is true of finite data only: NaN or infinity in the data passes a zero weight
(``0 * NaN``), and the proof says nothing about such inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.origin import ANY, POSITIVE
from causal_attn.verify.influence.registry import MICROSOFT, Call, rule
from causal_attn.verify.influence.tensor import (
    SMALLEST_OFFSET,
    Array,
    Tensor,
    lift,
    make,
)

__all__ = [
    "add",
    "bounded",
    "cast",
    "divide",
    "merge",
    "multiply",
    "opaque",
    "select",
    "subtract",
    "underflow",
    "with_constants",
]

Binary = Callable[..., Array]
Absorb = Callable[[Tensor, Tensor], tuple[Array, Array]]

_SIGN = "a division by a zero that has the sign of data"
_NARROW = ("float8_", "float6_", "float4_")


def underflow(dtype: np.dtype[np.generic]) -> float:
    """How far below zero ``exp`` is exactly zero in `dtype`.

    ``ln(2**-150)`` is -103.98 for float32 and ``ln(2**-1075)`` is -745.2 for float64. Kernels
    compute float16 and bfloat16 in float32, so they have the figure of float32.
    """
    return 746.0 if dtype == np.float64 else 104.0


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
    a, b = _lifted(a, rank), _lifted(b, rank)
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
        a, b = _lifted(a, product.rank), _lifted(b, product.rank)
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
        void = _lifted(a, quotient.rank).void
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
    c, a, b = (_lifted(tensor, rank) for tensor in (condition, a, b))
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


def _lifted(tensor: Tensor, rank: int) -> Tensor:
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
    a, b = _lifted(a, result.rank), _lifted(b, result.rank)
    with np.errstate(all="ignore"):
        low = function(a.low, ends(b)[0])
        high = function(a.high, ends(b)[1])
    return with_constants(result, low, high)


def _scaled(result: Tensor, data: Tensor, factor: Tensor, function: Binary) -> Tensor:
    data, factor = _lifted(data, result.rank), _lifted(factor, result.rank)
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


def _fold(call: Call, function: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    result = call.tensor(0)
    for index in range(1, len(call.inputs)):
        result = function(result, call.tensor(index))
    return [result]


@rule("Add", "Sum")
def _add(call: Call) -> list[Tensor]:
    return _fold(call, add)


@rule("Sub")
def _sub(call: Call) -> list[Tensor]:
    return [subtract(call.tensor(0), call.tensor(1))]


@rule("Mul")
def _mul(call: Call) -> list[Tensor]:
    a, b = call.tensor(0), call.tensor(1)
    result = multiply(a, b)
    for zero, data, at in ((a, b, 1), (b, a, 0)):
        if call.origins[at].wild:
            where = _lifted(zero, result.rank).zero & ~_lifted(data, result.rank).known
            result = call.spoiled(result, where, at, "0 times what may be NaN")
    return [result]


@rule("Div")
def _div(call: Call) -> list[Tensor]:
    a, b = call.tensor(0), call.tensor(1)
    result = divide(a, b)
    if a.dtype.kind in "iub":
        return [result]
    if call.origins[1].sign != POSITIVE or call.origins[1].wild:
        where = _lifted(a, result.rank).zero & ~_lifted(b, result.rank).known
        result = call.spoiled(result, where, 1, "0 divided by what may be 0")
    if call.origins[0].wild:
        where = ~_lifted(a, result.rank).known & _lifted(b, result.rank).known & result.known
        result = call.doubted(result, where, 0, "what may be infinite, by infinity")
    return [call.doubted(result, _lifted(b, result.rank).nought, 1, _SIGN)]


@rule("Mean")
def _mean(call: Call) -> list[Tensor]:
    (total,) = _fold(call, add)
    return [divide(total, call.constant(len(call.inputs), total.dtype))]


@rule("Where")
def _where(call: Call) -> list[Tensor]:
    return [select(call.tensor(0), call.tensor(1), call.tensor(2))]


@rule("Cast")
def _cast(call: Call) -> list[Tensor]:
    return [_observed(call, cast(call.tensor(0), numpy_dtype(call.attr("to"))))]


@rule("CastLike")
def _cast_like(call: Call) -> list[Tensor]:
    return [_observed(call, cast(call.tensor(0), call.tensor(1).dtype), 1)]


def _observed(call: Call, result: Tensor, inputs: int | None = None) -> Tensor:
    """`result`, in which NaN under a known value may show as another number."""
    if result.dtype.kind not in "iub":
        return result
    for index in range(inputs if inputs is not None else len(call.inputs)):
        if call.origins[index].wild:
            where = call.tensor(index).known
            result = call.doubted(result, where, index, "a number that may be NaN")
    return result


def _either(value: bool) -> Absorb:
    def absorb(a: Tensor, b: Tensor) -> tuple[Array, Array]:
        decides = (a.known & (a.low == value)) | (b.known & (b.low == value))
        return decides, np.full((), value)

    return absorb


def _extreme(sign: float) -> Absorb:
    def absorb(a: Tensor, b: Tensor) -> tuple[Array, Array]:
        if a.dtype.kind in "iub":
            return np.zeros((), bool), np.zeros((), a.dtype)
        decides = (a.known & (a.low == sign * np.inf)) | (b.known & (b.low == sign * np.inf))
        return decides, np.full((), sign * np.inf, a.dtype)

    return absorb


def _power(a: Tensor, b: Tensor) -> tuple[Array, Array]:
    return b.zero, np.ones((), a.dtype)


def _raised(a: Array, b: Array) -> Array:
    # The result has the type of the base, but an exponent of 0.5 stays 0.5 for an integer base.
    if a.dtype.kind in "iu" and b.dtype.kind not in "iub":
        return np.asarray(np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype))
    result: Array = np.power(a, b.astype(a.dtype))
    return result


def _shift(call: Call) -> Binary:
    return np.left_shift if call.attr("direction") == "LEFT" else np.right_shift


_BINARY: dict[str, tuple[Binary, Absorb | None]] = {
    "And": (np.logical_and, _either(False)),
    "Or": (np.logical_or, _either(True)),
    "Xor": (np.logical_xor, None),
    "BitwiseAnd": (np.bitwise_and, lambda a, b: (a.zero | b.zero, np.zeros((), a.dtype))),
    "BitwiseOr": (np.bitwise_or, None),
    "BitwiseXor": (np.bitwise_xor, None),
    "Pow": (lambda a, b: _raised(a, b), _power),
}


@rule(*_BINARY)
def _binary(call: Call) -> list[Tensor]:
    function, absorb = _BINARY[call.node.op]
    (result,) = _fold(call, lambda a, b: merge(a, b, function, absorb))
    if call.node.op == "Pow" and call.tensor(0).dtype.kind not in "iub":
        base = _lifted(call.tensor(0), result.rank)
        exponent = _lifted(call.tensor(1), result.rank)
        where = base.nought & ~(exponent.known & (exponent.low >= 0))
        result = call.doubted(result, where, 0, _SIGN)
    return [_observed(call, result)]


_COMPARED: dict[str, tuple[Binary, bool]] = {
    "Equal": (np.equal, True),
    "Greater": (np.greater, False),
    "GreaterOrEqual": (np.greater_equal, True),
    "Less": (np.less, False),
    "LessOrEqual": (np.less_equal, True),
}
"""The function, and what it says of a number and itself."""


@rule(*_COMPARED)
def _compare(call: Call) -> list[Tensor]:
    function, reflexive = _COMPARED[call.node.op]
    result = merge(call.tensor(0), call.tensor(1), function)
    if not result.known.all() and not any(origin.wild for origin in call.origins):
        same = call.scope.same(*call.node.inputs)
        if same is not None and same.any():
            low = np.where(same, reflexive, result.low)
            result = make(result.shape, bool, result.bits, result.known | same, low)
    return [_observed(call, result)]


@rule("Max", "Min")
def _max_min(call: Call) -> list[Tensor]:
    if call.node.op == "Max":
        return _fold(call, lambda a, b: bounded(a, b, np.maximum))
    (result,) = _fold(call, lambda a, b: bounded(a, b, np.minimum))
    if any(origin.sign == ANY or origin.wild for origin in call.origins):
        return [result]
    # None is below zero, so where one is zero that is the smallest.
    zeros = [_lifted(call.tensor(at), result.rank).zero for at in range(len(call.inputs))]
    zero = np.logical_or.reduce(np.broadcast_arrays(*zeros))
    low, high = (np.where(zero, np.zeros((), end.dtype), end) for end in (result.low, result.high))
    return [make(result.shape, result.dtype, result.bits, result.known | zero, low, high)]


@rule("Mod")
def _mod(call: Call) -> list[Tensor]:
    function = np.fmod if call.attr("fmod", 0) else np.mod
    return [merge(call.tensor(0), call.tensor(1), function)]


@rule("BitShift")
def _bit_shift(call: Call) -> list[Tensor]:
    return [merge(call.tensor(0), call.tensor(1), _shift(call))]


def _erf(values: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(values.astype(np.float64)))


def _sigmoid(values: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-values))
    return result


_UNARY: dict[str, Callable[[Array], Array]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Asin": np.arcsin,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "BitwiseNot": np.invert,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": _erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "IsNaN": np.isnan,
    "Log": np.log,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Reciprocal": np.reciprocal,
    "Relu": lambda values: np.maximum(values, np.zeros((), values.dtype)),
    "Round": np.rint,
    "Sigmoid": _sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": lambda values: np.logaddexp(values, 0),
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
}
_TO_BOOL = {"IsNaN", "Not"}


@rule("IsInf")
def _is_inf(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    found = np.zeros((), bool)
    if call.attr("detect_negative", 1):
        found = found | np.isneginf(tensor.low.astype(np.float64))
    if call.attr("detect_positive", 1):
        found = found | np.isposinf(tensor.low.astype(np.float64))
    return [
        _observed(call, make(tensor.shape, bool, tensor.bits, tensor.known, found & tensor.known))
    ]


@rule(*_UNARY)
def _unary(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    op = call.node.op
    dtype = np.dtype(bool) if op in _TO_BOOL else tensor.dtype
    with np.errstate(all="ignore"):
        low = np.asarray(_UNARY[op](tensor.low)).astype(dtype)
    low = np.where(tensor.known, low, np.zeros((), dtype))
    result = _observed(call, make(tensor.shape, dtype, tensor.bits, tensor.known, low))
    if op == "Reciprocal":
        result = call.doubted(result, tensor.nought, 0, _SIGN)
    if tensor.high is tensor.low and not tensor.low.any():
        return [result]
    if op == "Neg" and dtype.kind not in "iub":
        return [with_constants(result, -tensor.high, -tensor.low)]
    if op == "Exp":
        return [_exp(call, tensor, result)]
    return [result]


def _exp(call: Call, tensor: Tensor, result: Tensor) -> Tensor:
    """``exp(data - 1e4)`` is zero where the gap hides; the data is a difference of scores."""
    gap = np.where(tensor.known, -np.inf, -tensor.high.astype(np.float64))
    # Of a difference of two scores, each is half.
    hidden = call.mode.hides(gap, 2, underflow(tensor.dtype), call.score(0) / 2)
    return make(result.shape, result.dtype, result.bits, result.known | hidden, result.low)


@rule("Clip")
def _clip(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    for index, name, function in ((1, "min", np.maximum), (2, "max", np.minimum)):
        bound = call.optional(index)
        if bound is None and call.attr(name) is not None:
            bound = call.constant(call.attr(name), tensor.dtype)
        if bound is not None:
            tensor = bounded(tensor, bound, function)
    return [tensor]


@rule(
    "Acosh", "Asinh", "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
    "Selu", "Shrink", "Softsign", "Swish", "ThresholdedRelu", "PRelu", "Bernoulli",
)  # fmt: skip
@rule("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "ScaledSiLU", domain=MICROSOFT)
def _activation(call: Call) -> list[Tensor]:
    inputs = [call.tensor(index) for index in range(len(call.inputs)) if call.has(index)]
    return [opaque(inputs)]


@rule("BiasAdd", domain=MICROSOFT)
def _bias_add(call: Call) -> list[Tensor]:
    return _fold(call, add)
