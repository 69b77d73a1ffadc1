"""Errors of a graph beside those of honest runs, over many calls.

The budget is not a hand-picked tolerance but what any honest run at the dtype may be off by.
Honest runs are plain ones at every call and runs with every result rounded at random, at a few.
One draw of roundings says little, so they are pooled: of each output, the largest error that an
honest run makes in any call, in parts of the largest value there. Two things are asked:

- no value is off by more than four times that, plus a few units in the last place. A call may be
  worse conditioned than all others (one row of a deep decoder behind a random past: 200 times its
  neighbours), so where a value is off by more, `Errors.call` names the call, and honest runs of it
  that are added then (`HonestErrors.again`) count for that call alone;
- over the calls, the median of the graph's root mean square error is at most twice that of the
  honest runs, plus a quarter of a unit. A mean over all values hardly depends on luck, so a fault
  that moves every value a little is found where the largest error would hide it.

NaN where the oracle has none is a failure, whatever the budget. A budget as large as the values
themselves would let anything pass, which decides nothing: data rounded to 8 bits in every layer of
a deep model may do that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.verify.compare.comparison import Comparison, Deviation, deviation, judge

__all__ = ["Errors", "HonestErrors"]

_LARGEST = 2.0
"""The largest error among many values is a matter of luck: `judge` allows twice this."""

_TYPICAL = 2.0
_TYPICAL_BAND_ULP = 0.25
_ENOUGH = 5
"""Calls from which on a median is one."""

Results = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """What was found of all outputs.

    Attributes:
        fault: What is wrong, as a sentence without its full stop; empty if nothing is.
        call: With a fault, the call that more honest runs could clear; empty if none could.
        powerless: Why nothing could have been found, likewise.
        figures: Of each output, its largest share of the budget and its typical error.
        worst: The error that takes the largest share of its budget; ``None`` with a fault.
    """

    fault: str = ""
    call: str = ""
    powerless: str = ""
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    worst: Comparison | None = None


class HonestErrors:
    """Collects errors call by call, and judges them together."""

    def __init__(self) -> None:
        self._outputs: dict[str, _Output] = {}

    def add(
        self, call: str, actual: Results, oracle: Results, honest: Mapping[str, Results]
    ) -> str:
        """Take the results of one call.

        Args:
            call: Its sizes, in words.
            actual: What the graph returned.
            oracle: The right values, in float64.
            honest: Results of other runs, by their kind, such as ``plain``.

        Returns:
            What is wrong whatever the budget, such as a NaN; empty if nothing is.
        """
        for name, result in actual.items():
            found = deviation(result, oracle[name])
            if found.fault:
                return f"`{name}` {call}: {found.fault}"
            output = self._outputs.setdefault(name, _Output(dtype=result.dtype))
            output.graph.append((call, found))
            for kind, run in honest.items():
                rounded = _as(run[name], result.dtype)
                output.honest[kind].append(deviation(rounded, oracle[name]))
        return ""

    def again(self, call: str, oracle: Results, honest: Mapping[str, Results]) -> None:
        """Take more honest runs of a call that was added.

        Args:
            call: As it was given to `add`.
            oracle: The right values, in float64.
            honest: Results by the kind of run.
        """
        for name, output in self._outputs.items():
            output.again[call] += [
                deviation(_as(run[name], output.dtype), oracle[name]) for run in honest.values()
            ]

    def judged(self) -> Errors:
        """What all calls amount to."""
        figures: dict[str, dict[str, float]] = {}
        worst: Comparison | None = None
        powerless = ""
        for name, output in self._outputs.items():
            compared = output.compared()
            for call, comparison in compared:
                if not comparison.passed:
                    return Errors(fault=f"`{name}` {call}: {comparison.reason}", call=call)
            typical, allowed = output.typical()
            if len(compared) >= _ENOUGH and not typical <= allowed:
                fault = (
                    f"`{name}` is typically off by {typical:.3g} of its largest value (root mean "
                    f"square, median over {len(compared)} calls), budget {allowed:.3g}"
                )
                return Errors(fault=fault)
            most = max((comparison for _, comparison in compared), key=_share)
            figures[name] = {**most.figures, "typical": typical, "typical_budget": allowed}
            worst = most if worst is None else max(worst, most, key=_share)
            if max(output.largest(call) for call, _ in compared) >= 1:
                powerless = (
                    f"honest runs of `{name}` are off by half of its largest value: no fault "
                    "could be told from rounding"
                )
        return Errors(figures=figures, worst=worst, powerless=powerless)


@dataclass(frozen=True)
class _Output:
    """Of one output, over all calls: of the graph, and of each kind of honest run.

    Those of `again` are of single calls, by name.
    """

    dtype: np.dtype[Any]
    graph: list[tuple[str, Deviation]] = field(default_factory=list)
    honest: dict[str, list[Deviation]] = field(default_factory=lambda: defaultdict(list))
    again: dict[str, list[Deviation]] = field(default_factory=lambda: defaultdict(list))

    def largest(self, call: str = "") -> float:
        """What `judge` takes as the error of an honest run, in parts of the largest value."""
        runs = [run for kind in self.honest.values() for run in kind]
        runs += self.again.get(call, [])
        right = [run.relative(run.max_abs) for run in runs if not run.fault]
        return _LARGEST * max(right, default=0.0)

    def compared(self) -> list[tuple[str, Comparison]]:
        """Every call against the largest error of an honest run in any."""
        return [
            (call, judge(run, self.largest(call) * (run.magnitude or 1.0)))
            for call, run in self.graph
        ]

    def typical(self) -> tuple[float, float]:
        """The median root mean square error of the graph, and its budget, in the same parts."""
        found = _typical([run for _, run in self.graph])
        honest = max((_typical(runs) for runs in self.honest.values()), default=0.0)
        unit = max(run.relative(run.ulp) for _, run in self.graph)
        return found, _TYPICAL * honest + _TYPICAL_BAND_ULP * unit


def _as(run: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A run that is rounded at random is a float64 array of the graph's dtype."""
    with np.errstate(over="ignore"):
        return run.astype(dtype)


def _typical(runs: Sequence[Deviation]) -> float:
    right = [run.relative(run.rms) for run in runs if not run.fault]
    return float(np.median(right)) if right else 0.0


def _share(comparison: Comparison) -> float:
    """How much of its budget an error takes."""
    return comparison.max_abs / comparison.budget if comparison.budget else 0.0
