"""How far apart two runs of one graph may be and still differ by rounding alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["distance", "largest_difference", "most_rounding", "rounding_budget"]

BAND_ULP = 16


def most_rounding(array: NDArray[Any]) -> float:
    """The largest difference that may be taken for rounding: half the digits of the largest value.

    A graph whose rows change with what they must not see must not widen its own budget, so what
    takes more digits is no rounding. Integers and truth values are exact.
    """
    if array.dtype.kind != "f":
        return 0.0
    return math.sqrt(np.finfo(array.dtype).eps) * _largest(array)


def rounding_budget(noise: float, rows: Mapping[str, NDArray[Any]]) -> float:
    """Twice the `noise` measured between lengths, and `BAND_ULP` units in the last place."""
    band = most = 0.0
    for array in rows.values():
        if array.dtype.kind == "f":
            band = max(band, BAND_ULP * float(np.finfo(array.dtype).eps) * _largest(array))
            most = max(most, most_rounding(array))
    return 2 * min(noise, most) + band


def _largest(array: NDArray[Any]) -> float:
    wide = array.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0))


def largest_difference(
    rows: Mapping[str, NDArray[Any]], whole: Mapping[str, NDArray[Any]]
) -> float:
    """Largest absolute difference of `rows` from the first rows of `whole`; NaN is infinite."""
    worst = 0.0
    for name, got in rows.items():
        want = whole[name][: len(got)].astype(np.float64)
        error = np.abs(got.astype(np.float64) - want)
        # NaN must not pass: max() of a list with NaN depends on the order.
        worst = max(worst, float("inf") if np.isnan(error).any() else float(error.max(initial=0)))
    return worst


def distance(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Largest absolute difference; equal NaN are equal, anything else that is not is infinite."""
    if left.dtype.kind not in "fV":
        return 0.0 if np.array_equal(left, right) else float("inf")
    a, b = left.astype(np.float64), right.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    same = (a == b) | np.isnan(a)
    return float(np.abs(np.where(same, 0, a) - np.where(same, 0, b)).max(initial=0))
