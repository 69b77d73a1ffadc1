"""Operators of two tensors and more: arithmetic, logic, comparison, choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.origin import ANY, POSITIVE
from causal_attn.verify.influence.registry import MICROSOFT, Call, rule
from causal_attn.verify.influence.rules.combine import (
    Absorb,
    Binary,
    add,
    bounded,
    cast,
    divide,
    lifted,
    merge,
    multiply,
    select,
    subtract,
)
from causal_attn.verify.influence.tensor import Array, Tensor, make

__all__ = ["SIGN", "observed"]

SIGN = "a division by a zero that has the sign of data"


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
            where = lifted(zero, result.rank).zero & ~lifted(data, result.rank).known
            result = call.spoiled(result, where, at, "0 times what may be NaN")
    return [result]


@rule("Div")
def _div(call: Call) -> list[Tensor]:
    a, b = call.tensor(0), call.tensor(1)
    result = divide(a, b)
    if a.dtype.kind in "iub":
        return [result]
    if call.origins[1].sign != POSITIVE or call.origins[1].wild:
        where = lifted(a, result.rank).zero & ~lifted(b, result.rank).known
        result = call.spoiled(result, where, 1, "0 divided by what may be 0")
    if call.origins[0].wild:
        where = ~lifted(a, result.rank).known & lifted(b, result.rank).known & result.known
        result = call.doubted(result, where, 0, "what may be infinite, by infinity")
    return [call.doubted(result, lifted(b, result.rank).nought, 1, SIGN)]


@rule("Mean")
def _mean(call: Call) -> list[Tensor]:
    (total,) = _fold(call, add)
    return [divide(total, call.constant(len(call.inputs), total.dtype))]


@rule("Where")
def _where(call: Call) -> list[Tensor]:
    return [select(call.tensor(0), call.tensor(1), call.tensor(2))]


@rule("Cast")
def _cast(call: Call) -> list[Tensor]:
    return [observed(call, cast(call.tensor(0), numpy_dtype(call.attr("to"))))]


@rule("CastLike")
def _cast_like(call: Call) -> list[Tensor]:
    return [observed(call, cast(call.tensor(0), call.tensor(1).dtype), 1)]


def observed(call: Call, result: Tensor, inputs: int | None = None) -> Tensor:
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
        base = lifted(call.tensor(0), result.rank)
        exponent = lifted(call.tensor(1), result.rank)
        where = base.nought & ~(exponent.known & (exponent.low >= 0))
        result = call.doubted(result, where, 0, SIGN)
    return [observed(call, result)]


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
    return [observed(call, result)]


@rule("Max", "Min")
def _max_min(call: Call) -> list[Tensor]:
    if call.node.op == "Max":
        return _fold(call, lambda a, b: bounded(a, b, np.maximum))
    (result,) = _fold(call, lambda a, b: bounded(a, b, np.minimum))
    if any(origin.sign == ANY or origin.wild for origin in call.origins):
        return [result]
    # None is below zero, so where one is zero that is the smallest.
    zeros = [lifted(call.tensor(at), result.rank).zero for at in range(len(call.inputs))]
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


@rule("BiasAdd", domain=MICROSOFT)
def _bias_add(call: Call) -> list[Tensor]:
    return _fold(call, add)
