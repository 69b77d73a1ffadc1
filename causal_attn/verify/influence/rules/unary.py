"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, rule
from causal_attn.verify.influence.rules.combine import bounded, opaque, with_constants
from causal_attn.verify.influence.rules.elementwise import SIGN, observed
from causal_attn.verify.influence.tensor import Array, Tensor, make

__all__ = ["underflow"]


def underflow(dtype: np.dtype[np.generic]) -> float:
    """How far below zero ``exp`` is exactly zero in `dtype`.

    ``ln(2**-150)`` is -103.98 for float32 and ``ln(2**-1075)`` is -745.2 for float64. Kernels
    compute float16 and bfloat16 in float32, so they have the figure of float32.
    """
    return 746.0 if dtype == np.float64 else 104.0


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
        observed(call, make(tensor.shape, bool, tensor.bits, tensor.known, found & tensor.known))
    ]


@rule(*_UNARY)
def _unary(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    op = call.node.op
    dtype = np.dtype(bool) if op in _TO_BOOL else tensor.dtype
    with np.errstate(all="ignore"):
        low = np.asarray(_UNARY[op](tensor.low)).astype(dtype)
    low = np.where(tensor.known, low, np.zeros((), dtype))
    result = observed(call, make(tensor.shape, dtype, tensor.bits, tensor.known, low))
    if op == "Reciprocal":
        result = call.doubted(result, tensor.nought, 0, SIGN)
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
