"""Softmax: a score known to be ``-inf`` has weight zero, and a finite mask has it under a bound.

With ``s`` the data in the scores, ``|s| <= S``, and ``c`` the mask constants of one row, a masked
score weighs ``exp(s_m + c_m - max(s + c)) <= exp(S + c_m - (c_v - S))`` where ``c_v`` is the
largest constant in the row. That is exactly zero once ``c_v - c_m - 2 S`` exceeds what ``exp``
underflows at, so the mask hides while ``S < (c_v - c_m - underflow) / 2``. Where the masked score
was replaced by the constant there is no ``s_m`` and the bound is twice as large.
"""

from __future__ import annotations

import math

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, Mode, rule
from causal_attn.verify.influence.rules.combine import add
from causal_attn.verify.influence.rules.movement import reshape
from causal_attn.verify.influence.rules.unary import underflow
from causal_attn.verify.influence.tensor import Array, Tensor, expand, make, reduce_bits

__all__ = ["hidden_scores", "softmax"]


def hidden_scores(
    mode: Mode, scores: Tensor, axis: int, largest: float = math.inf
) -> tuple[Array, Array]:
    """Which scores carry no weight along `axis`.

    Args:
        mode: Decides about finite masks.
        scores: Any rank.
        axis: Along which they are compared.
        largest: Bound on their magnitude, less the constants of masks.

    Returns:
        A bool plane, and the plane of the largest constant of each row, in float64.
    """
    if scores.plain:
        ones = (1,) * scores.rank
        return np.zeros(ones, bool), np.zeros(ones)
    planes = (scores.known, scores.low.astype(np.float64), scores.high.astype(np.float64))
    known, low, high = np.broadcast_arrays(*(expand(p, scores.shape, [axis]) for p in planes))
    absent: Array = known & np.isneginf(low)
    candidates = np.where(absent | np.isnan(low), -np.inf, low)
    best: Array = candidates.max(axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        gap = np.where(absent, -np.inf, best - np.clip(high, -1e300, None))
    gap = np.where(np.isnan(gap), -np.inf, gap)
    rows_known = known.all(axis=axis, keepdims=True)
    data = np.where(rows_known, 0, np.where(known, 1, 2))
    hidden = mode.hides(gap, data, underflow(scores.dtype), largest)
    return absent | hidden, best


def softmax(
    mode: Mode,
    scores: Tensor,
    axis: int,
    *,
    log: bool = False,
    empty: float,
    largest: float = math.inf,
) -> Tensor:
    """Weights along `axis`; hidden scores have a known weight.

    Args:
        mode: Decides about finite masks.
        scores: Any rank.
        axis: Along which the weights sum to one.
        log: Logarithms of the weights.
        empty: Weights of a row in which every score is ``-inf``: NaN by the formula.
        largest: Bound on the magnitude of scores, less the constants of masks.
    """
    axis %= scores.rank
    if scores.size == 0:
        return make(scores.shape, scores.dtype, scores.bits, np.zeros((), bool), np.zeros(()))
    hidden, best = hidden_scores(mode, scores, axis, largest)
    bits = reduce_bits(scores, [axis], keep=~hidden)
    nowhere = hidden.all(axis=axis, keepdims=True) & np.isneginf(best)
    low = np.where(nowhere, empty, -np.inf if log else 0.0)
    low = np.where(hidden, low, 0.0)
    return make(scores.shape, scores.dtype, bits, hidden, low)


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: Call) -> list[Tensor]:
    scores = call.tensor(0)
    op = call.node.op
    axis = call.attr("axis", -1 if call.opset >= 13 else 1)
    if not -scores.rank <= axis < scores.rank:
        raise DataDependent(f"its axis {axis} is not one of {scores.rank}")
    axis %= scores.rank
    rows = scores
    if call.opset < 13 and axis != scores.rank - 1:
        # Older opsets flatten to a matrix first and normalize its rows.
        rows = reshape(scores, (math.prod(scores.shape[:axis]), math.prod(scores.shape[axis:])))
        axis = 1
    largest = call.score(0)
    log = op == "LogSoftmax"
    weights = softmax(call.mode, rows, axis, log=log, empty=np.nan, largest=largest)
    if op == "Hardmax":
        # A row of nothing but -inf has its 1 somewhere; no row is NaN.
        known = weights.known & ~np.isnan(weights.low)
        weights = make(rows.shape, rows.dtype, weights.bits, known, np.zeros(()))
    return [reshape(weights, scores.shape)]


@rule("BiasSoftmax", domain=MICROSOFT)
def _bias_softmax(call: Call) -> list[Tensor]:
    axis = call.attr("axis", 1)
    scores = add(call.tensor(0), call.tensor(1))
    axis = axis if axis == -1 else scores.rank - 1
    return [softmax(call.mode, scores, axis, empty=np.nan, largest=call.score(0, 1))]
