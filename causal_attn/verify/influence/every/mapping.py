"""Operators that make each element of the result of the one at the same place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.every.affine import (
    Affine,
)
from causal_attn.verify.influence.every.mapped import (
    Number,
    computed,
    mapped,
    overflows,
    reach_of,
)
from causal_attn.verify.influence.every.run import Call, rule
from causal_attn.verify.influence.every.symbolic import (
    Cases,
    Index,
    Symbolic,
    Unclear,
    choice,
    holds,
    surely,
)
from causal_attn.verify.influence.graph import numpy_dtype
from causal_attn.verify.influence.origin import ANY
from causal_attn.verify.influence.registry import MICROSOFT

__all__ = ["negative"]

_EXACT = 256
"""Whole numbers up to here are exact in every float that a kernel computes in."""
_KEEPS_INFINITY = {"float16", "bfloat16", "float32", "float64"}


@rule(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mean", "Mish",
    "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
def _plain(call: Call) -> list[Symbolic]:
    return [mapped(call, call.tensors())[1]]


@rule("BiasGelu", "FastGelu", "Gelu", "QuickGelu", domain=MICROSOFT)
def _plain_too(call: Call) -> list[Symbolic]:
    return [mapped(call, call.tensors())[1]]


@rule("Exp")
def _exp(call: Call) -> list[Symbolic]:
    result = mapped(call, [call.tensor(0)])[1]
    return [replace(result, zero=surely(call.tensor(0), "hidden"))]


@rule("IsNaN", "IsInf")
def _odd(call: Call) -> list[Symbolic]:
    if call.tensor(0).of_rows and call.tensor(0).wild:
        raise Unclear("it sees what a zero was made of")
    return [mapped(call, [call.tensor(0)], bool)[1]]


@rule("Identity")
def _identity(call: Call) -> list[Symbolic]:
    return [call.tensor(0)]


@rule("Neg")
def _neg(call: Call) -> list[Symbolic]:
    (value,), result = mapped(call, [call.tensor(0)])
    if value.read is not None:
        return [computed(call.run, result, negative, [value])]
    return [replace(result, zero=surely(value, "zero"))]


def negative(number: Affine | float) -> Number:
    return number.times(-1) if isinstance(number, Affine) else -number


@rule("Cast")
def _cast(call: Call) -> list[Symbolic]:
    value, dtype = call.tensor(0), numpy_dtype(call.attributes["to"])
    result = replace(value, dtype=dtype)
    if value.dtype == dtype:
        return [result]
    if dtype == np.bool_:
        known = None if value.read is None else _cast_to_bool(value)
        return [replace(result, read=known, zero=None, hidden=None, low=None, convex=False)]
    wide = dtype.name in ("float32", "float64", "bfloat16")
    if value.read is None:
        if dtype.name not in _KEEPS_INFINITY:
            # Saturated, cut to a whole number, wrapped around.
            return [replace(result, zero=None, hidden=None, low=None, sign=ANY, tainted=True)]
        hidden = value.hidden
        wild = value.wild or (value.sized and overflows(value.reach, dtype))
        tainted = value.tainted or (value.low is not None and not wide)
        low = value.low if wide else None
        return [replace(result, low=low, hidden=hidden, tainted=tainted, wild=wild)]
    if value.dtype.kind == "f" or "float" in value.dtype.name:
        if wide:
            return [computed(call.run, result, lambda number: number, [value])]
        return [replace(result, read=None, zero=None, hidden=None, low=None, sign=ANY)]
    if dtype.kind in "iu" and value.dtype.kind in "iub":
        return [computed(call.run, replace(result, read=None), lambda number: number, [value])]
    # As a float a number of places is exact up to some length only.
    made = computed(call.run, replace(result, read=None), _as_float, [value])
    reach = reach_of(call.run, value) if value.read is not None else 63.0
    sized = made.read is None
    wild = sized and overflows(reach, dtype)
    return [replace(made, sized=sized, reach=reach, wild=made.wild or wild)]


def _as_float(number: Affine | float) -> Number:
    if not isinstance(number, Affine):
        return number
    exact = number.fixed is not None and abs(number.fixed) <= _EXACT
    return float(number.constant) if exact else None


def _cast_to_bool(value: Symbolic) -> Callable[[Index], Cases]:
    read = value.read
    assert read is not None  # the caller asked
    return lambda index: choice(holds(read(index)))
