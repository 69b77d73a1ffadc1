"""Whether a graph says what PyTorch says: every output against a float64 oracle, within a budget.

The budget is not a hand-picked tolerance. It is twice the error that plain torch (or numpy, where
there is no torch) makes at the same dtype on the same inputs, plus a rounding band of a few units
in the last place of the largest value: results that are exact by luck must not make a correct
result fail. NaN where the oracle has none is a failure, whatever the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import in_words
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.cache_slots import blank_unused
from causal_attn.verify.oracle.yardstick import widened

__all__ = ["Comparison", "check_parity", "compare"]

_NAME = "parity"

BAND_ULP = 4
"""One rounding each for score, exponential, sum and product."""


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


def compare(
    actual: NDArray[Any],
    oracle: NDArray[Any],
    baseline: NDArray[Any] | None = None,
) -> Comparison:
    """Compare one output.

    Args:
        actual: What the graph returned, any shape and dtype.
        oracle: The right values, same shape, in float64 (exact dtypes as they are).
        baseline: The same computation in plain torch at the dtype of `actual`; ``None`` leaves
            the rounding band alone as the budget.
    """
    if actual.shape != oracle.shape:
        reason = f"shape {list(actual.shape)} where the oracle has {list(oracle.shape)}"
        return Comparison(
            max_abs=np.inf, max_rel=np.inf, max_ulp=np.inf, budget=0, passed=False, reason=reason
        )
    if actual.dtype.kind not in "fV" and oracle.dtype.kind != "f":
        wrong = int(np.count_nonzero(actual != oracle))
        reason = f"{wrong} of {actual.size} values differ" if wrong else ""
        return Comparison(
            max_abs=wrong, max_rel=wrong, max_ulp=wrong, budget=0, passed=not wrong, reason=reason
        )
    got, want = actual.astype(np.float64), oracle.astype(np.float64)
    finite = np.isfinite(want)
    magnitude = float(np.abs(want[finite]).max(initial=0))
    ulp = float(np.finfo(actual.dtype).eps) * magnitude
    band = BAND_ULP * ulp + float(np.finfo(actual.dtype).tiny)
    plain = 0.0
    if baseline is not None:
        plain = float(np.abs(baseline.astype(np.float64)[finite] - want[finite]).max(initial=0))
    budget = 2 * plain + band
    # inf - inf is NaN: places where the oracle itself is not finite must agree exactly.
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    difference = np.subtract(got, want, where=finite, out=np.zeros_like(want))
    error = float(np.abs(difference).max(initial=0))
    reason = ""
    if not same or not np.isfinite(got[finite]).all():
        count = int(np.count_nonzero(np.isnan(got) & ~np.isnan(want)))
        reason = f"{count} NaN where the oracle has none" if count else "infinities differ"
    elif not error <= budget:
        reason = f"off by {error:.3g}, budget {budget:.3g}"
    return Comparison(
        max_abs=error,
        max_rel=error / magnitude if magnitude else error,
        max_ulp=error / ulp if ulp else 0.0,
        budget=budget,
        passed=not reason,
        reason=reason,
    )


def check_parity(trial: Trial) -> Check | None:
    """Run fresh inputs through the graph and the oracle at every length.

    ``None`` without a yardstick.
    """
    feeder, yardstick, rng = trial.feeder, trial.yardstick, trial.rng(0)
    if yardstick is None:
        return None
    worst: dict[str, Comparison] = {}
    for sizes in feeder.cases(trial.lengths):
        feeds = feeder.make(sizes, rng)
        try:
            results = trial.session.run(feeds)
        except CausalAttnError as error:
            return trial.did_not_run(_NAME, f"does not run at {in_words(sizes)}: {error}")
        try:
            runs = results, yardstick.oracle(widened(feeds)), yardstick.baseline(feeds)
        except CausalAttnError as error:
            detail = f"the oracle does not run at {in_words(sizes)}: {error}"
            return trial.result(_NAME, None, detail)
        results, want, plain = (blank_unused(feeder.contract, feeds, run) for run in runs)
        for name, actual in results.items():
            comparison = compare(actual, want[name], plain[name])
            if not comparison.passed:
                detail = f"`{name}` at {in_words(sizes)}: {comparison.reason}"
                return trial.result(_NAME, False, detail)
            if name not in worst or comparison.max_abs > worst[name].max_abs:
                worst[name] = comparison
    most = max(worst.values(), key=lambda c: c.max_abs / c.budget if c.budget else 0)
    lengths = trial.lengths
    detail = (
        f"{len(lengths)} lengths from {min(lengths)} to {max(lengths)} tokens; largest error "
        f"{most.max_abs:.2g}, budget {most.budget:.2g}"
    )
    return trial.result(_NAME, True, detail, **{name: c.figures for name, c in worst.items()})
