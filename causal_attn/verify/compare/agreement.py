"""Whether two calls of one graph that compute the same rows agree.

Kernels sum in other orders at other shapes, so rows of a longer and a shorter call differ by
rounding. How much that may be is not read off the calls themselves: a graph whose rows depend on
the length would widen its own budget. Each call may be off by what parity allows of an honest run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.verify.compare.rounding import BAND_ULP, largest_difference, most_rounding

__all__ = ["Agreement", "agreement"]

_LUCK = 4
"""As parity allows, since a largest error is a matter of luck."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of several outputs the one that takes the largest share of its budget.

    Attributes:
        output: Its name; empty where nothing was compared.
        max_abs: Largest absolute difference.
        budget: Largest that is allowed.
    """

    output: str = ""
    max_abs: float = 0.0
    budget: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether all outputs agree."""
        return self.max_abs <= self.budget

    @property
    def share(self) -> float:
        """How much of its budget the difference takes."""
        if self.passed:
            return self.max_abs / self.budget if self.budget else 0.0
        return float("inf") if np.isinf(self.max_abs) else self.max_abs / max(self.budget, 1e-300)


def agreement(
    rows: Mapping[str, NDArray[Any]],
    whole: Mapping[str, NDArray[Any]],
    honest: Mapping[str, float],
) -> Agreement:
    """Hold `rows`, rows first, against the first rows of `whole`.

    Args:
        rows: Of a shorter call, or of several one after the other.
        whole: Of one call.
        honest: Errors of honest runs by output, in parts of its largest value. Of an output that
            is not in it half the digits count as rounding.
    """
    worst = Agreement()
    for name, got in rows.items():
        error = largest_difference({name: got}, whole)
        found = Agreement(
            output=name, max_abs=error, budget=_budget(whole[name], honest.get(name))
        )
        if found.share > worst.share or not worst.output:
            worst = found
    return worst


def _budget(rows: NDArray[Any], honest: float | None) -> float:
    """What two honest calls may lie apart; integers and truth values are exact."""
    if rows.dtype.kind != "f" or honest is None:
        return most_rounding(rows)
    wide = rows.astype(np.float64)
    largest = float(np.abs(wide[np.isfinite(wide)]).max(initial=0))
    return 2 * (_LUCK * honest + BAND_ULP * float(np.finfo(rows.dtype).eps)) * largest
