"""What the results of a graph are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.verify.feeds.feeder import Feeds

__all__ = ["Run", "Yardstick", "widened"]

Run = Callable[[Feeds], Mapping[str, NDArray[Any]]]
"""Feeds by input name to results by output name.

A run raises an error of ours where what it runs cannot be run.
"""


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """The right results, and what an ordinary run makes of them.

    Attributes:
        oracle: Right results; gets the feeds with floats widened to float64.
        baseline: Results of plain arithmetic at the dtype of the feeds.
        rounded: ``(feeds, seed)`` to results of the oracle's computation in which each step is
            rounded at random to the dtype that the graph computes in. ``None``: cannot be had.
    """

    oracle: Run
    baseline: Run
    rounded: Callable[[Feeds, int], Mapping[str, NDArray[Any]]] | None = None

    def errors(self, feeds: Feeds, seed: int) -> dict[str, float]:
        """The largest error of an honest run, by output, in parts of its largest value.

        Args:
            feeds: At the dtypes of the graph.
            seed: Of the run that is rounded at random, where there is one.

        Raises:
            CausalAttnError: One of the runs cannot be had.
        """
        wide = widened(feeds)
        want = self.oracle(wide)
        runs = [self.baseline(feeds)]
        if self.rounded is not None:
            runs.append(self.rounded(wide, seed))
        return {
            name: max(_share(run[name], right) for run in runs) for name, right in want.items()
        }


def widened(feeds: Feeds) -> Feeds:
    """`feeds` with every float as float64, which an oracle takes."""
    return {
        name: array.astype(np.float64) if array.dtype.kind in "fV" else array
        for name, array in feeds.items()
    }


def _share(run: NDArray[Any], right: NDArray[Any]) -> float:
    """Largest error of `run` where both are finite, in parts of the largest value of `right`."""
    finite = np.isfinite(right) & np.isfinite(run)
    largest = float(np.abs(right[finite]).max(initial=0))
    errors = np.abs(run[finite].astype(np.float64) - right[finite])
    return float(errors.max(initial=0)) / largest if largest else 0.0
