"""One result against its oracle: how far off it is, and how far off it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BAND_ULP", "Comparison", "Deviation", "compare", "deviation", "judge"]

BAND_ULP = 4
"""One rounding each for score, exponential, sum and product."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far a result is from the oracle.

    Attributes:
        max_abs: Largest absolute error, where the oracle is finite.
        rms: Root of the mean square of the same errors.
        magnitude: Largest magnitude of the oracle.
        ulp: A unit in the last place, at the result's dtype, of `magnitude`; 0 for integers.
        tiny: The smallest normal number of that dtype.
        fault: What is wrong whatever the budget, as a clause: a shape, an integer, a NaN.
    """

    max_abs: float
    rms: float = 0.0
    magnitude: float = 0.0
    ulp: float = 0.0
    tiny: float = 0.0
    fault: str = ""

    def relative(self, error: float) -> float:
        """`error` in parts of the largest magnitude."""
        return error / self.magnitude if self.magnitude else error


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output against its oracle.

    Attributes:
        max_abs: Largest absolute error.
        max_rel: Largest error relative to the largest magnitude of the oracle.
        max_ulp: `max_abs` in units in the last place, at the output's dtype, of that magnitude.
        budget: Largest absolute error allowed.
        passed: ``max_abs <= budget`` and no NaN or infinity that the oracle does not have.
        reason: Why not, as a clause; empty if it passed.
    """

    max_abs: float
    max_rel: float
    max_ulp: float
    budget: float
    passed: bool
    reason: str = ""

    @property
    def figures(self) -> dict[str, float]:
        """JSON values."""
        return {
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "max_ulp": self.max_ulp,
            "budget": self.budget,
        }


def deviation(actual: NDArray[Any], oracle: NDArray[Any]) -> Deviation:
    """How far `actual` is from `oracle`.

    Args:
        actual: Any shape and dtype.
        oracle: The right values, same shape, in float64 (exact dtypes as they are).
    """
    if actual.shape != oracle.shape:
        fault = f"shape {list(actual.shape)} where the oracle has {list(oracle.shape)}"
        return Deviation(max_abs=np.inf, fault=fault)
    if actual.dtype.kind not in "fV" and oracle.dtype.kind != "f":
        wrong = int(np.count_nonzero(actual != oracle))
        fault = f"{wrong} of {actual.size} values differ" if wrong else ""
        return Deviation(max_abs=wrong, fault=fault)
    got, want = actual.astype(np.float64), oracle.astype(np.float64)
    finite = np.isfinite(want)
    magnitude = float(np.abs(want[finite]).max(initial=0))
    # inf - inf is NaN: places where the oracle itself is not finite must agree exactly.
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    fault = ""
    if not same or not np.isfinite(got[finite]).all():
        count = int(np.count_nonzero(np.isnan(got) & ~np.isnan(want)))
        fault = f"{count} NaN where the oracle has none" if count else "infinities differ"
    errors = np.abs(got[finite] - want[finite])
    limits = np.finfo(actual.dtype)
    return Deviation(
        max_abs=float(errors.max(initial=0)),
        rms=float(np.sqrt(np.mean(errors**2))) if errors.size else 0.0,
        magnitude=magnitude,
        ulp=float(limits.eps) * magnitude,
        tiny=float(limits.tiny),
        fault=fault,
    )


def judge(found: Deviation, honest: float) -> Comparison:
    """Hold a deviation against what honest runs are off by.

    Args:
        found: Of a result.
        honest: The largest absolute error of an honest run. Twice that is allowed, and
            `BAND_ULP` units in the last place: results that are exact by luck must not make a
            right one fail.
    """
    budget = 2 * honest + BAND_ULP * found.ulp + found.tiny
    reason = found.fault
    if not reason and not found.max_abs <= budget:
        reason = f"off by {found.max_abs:.3g}, budget {budget:.3g}"
    return Comparison(
        max_abs=found.max_abs,
        max_rel=found.relative(found.max_abs),
        max_ulp=found.max_abs / found.ulp if found.ulp else found.max_abs,
        budget=budget,
        passed=not reason,
        reason=reason,
    )


def compare(
    actual: NDArray[Any],
    oracle: NDArray[Any],
    baseline: NDArray[Any] | None = None,
) -> Comparison:
    """Compare one output by itself.

    Args:
        actual: What the graph returned, any shape and dtype.
        oracle: The right values, same shape, in float64 (exact dtypes as they are).
        baseline: The same computation in plain torch at the dtype of `actual`; ``None`` leaves
            the rounding band alone as the budget.
    """
    plain = 0.0 if baseline is None else deviation(baseline, oracle).max_abs
    return judge(deviation(actual, oracle), plain)
