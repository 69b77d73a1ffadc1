"""Whether a graph says what PyTorch says: every output against a float64 oracle, within a budget.

The budget is not a hand-picked tolerance but what any honest run at the dtype may be off by.
Honest runs are plain torch (or numpy, where there is no torch) at every length and, where the
yardstick has them, runs of the oracle's own computation with every result rounded at random, at a
few lengths. One draw of roundings says little, so they are pooled: of each output, the largest
error that an honest run makes at any length, in parts of the largest value there. Two things are
asked:

- no value is off by more than four times that, plus a few units in the last place;
- over the lengths, the median of the graph's root mean square error is at most twice that of the
  honest runs, plus a quarter of a unit. A mean over all values hardly depends on luck, so a fault
  that moves every value a little is found where the largest error would hide it.

NaN where the oracle has none is a failure, whatever the budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.comparison import Comparison, Deviation, deviation, judge
from causal_attn.verify.checks.rows import in_words
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.cache_slots import blank_unused
from causal_attn.verify.feeds.feeder import Feeds, Sizes
from causal_attn.verify.oracle.yardstick import Yardstick, widened

__all__ = ["check_parity"]

_NAME = "parity"

_SAMPLES = 2
"""Randomly rounded runs at each length that has any."""
_SAMPLED_LENGTHS = 4
"""How many lengths have any: such a run takes several times as long as a plain one."""

_LARGEST = 2.0
"""The largest error among many values is a matter of luck: `judge` allows twice this."""

_TYPICAL = 2.0
_TYPICAL_BAND_ULP = 0.25
_ENOUGH = 5
"""Lengths from which on a median is one."""


@dataclass(frozen=True)
class _Errors:
    """Of one output, over all lengths: of the graph, and of each kind of honest run."""

    graph: list[tuple[Sizes, Deviation]] = field(default_factory=list)
    honest: dict[str, list[Deviation]] = field(default_factory=lambda: defaultdict(list))

    def largest(self) -> float:
        """The largest error of an honest run, in parts of the largest value."""
        runs = [run for kind in self.honest.values() for run in kind if not run.fault]
        return max((run.relative(run.max_abs) for run in runs), default=0.0)

    def typical(self) -> tuple[float, float]:
        """The median root mean square error of the graph, and its budget, in the same parts."""
        found = _typical([run for _, run in self.graph])
        honest = max((_typical(runs) for runs in self.honest.values()), default=0.0)
        unit = max(run.relative(run.ulp) for _, run in self.graph)
        return found, _TYPICAL * honest + _TYPICAL_BAND_ULP * unit


def check_parity(trial: Trial) -> Check | None:
    """Run fresh inputs through the graph, the oracle and honest runs at every length.

    ``None`` without a yardstick.
    """
    feeder, yardstick, rng = trial.feeder, trial.yardstick, trial.rng(_NAME)
    if yardstick is None:
        return None
    outputs: dict[str, _Errors] = defaultdict(_Errors)
    sampled = _sampled(trial.lengths)
    for sizes in feeder.cases(trial.lengths):
        feeds = feeder.make(sizes, rng)
        try:
            results = blank_unused(feeder.contract, feeds, trial.session.run(feeds))
        except CausalAttnError as error:
            return trial.did_not_run(_NAME, f"does not run at {in_words(sizes)}: {error}")
        samples = _SAMPLES if sizes[feeder.contract.tokens] in sampled else 0
        try:
            want, honest = _runs(trial, yardstick, feeds, samples)
        except CausalAttnError as error:
            detail = f"the oracle does not run at {in_words(sizes)}: {error}"
            return trial.result(_NAME, None, detail)
        for name, actual in results.items():
            found = deviation(actual, want[name])
            if found.fault:
                detail = f"`{name}` at {in_words(sizes)}: {found.fault}"
                return trial.result(_NAME, False, detail)
            outputs[name].graph.append((sizes, found))
            for kind, run in honest.items():
                # A run that is rounded at random is a float64 array of the graph's dtype.
                with np.errstate(over="ignore"):
                    rounded = run[name].astype(actual.dtype)
                outputs[name].honest[kind].append(deviation(rounded, want[name]))
    return _judged(trial, outputs)


def _judged(trial: Trial, outputs: Mapping[str, _Errors]) -> Check:
    figures: dict[str, dict[str, float]] = {}
    worst: Comparison | None = None
    for name, errors in outputs.items():
        largest = errors.largest()
        compared = [
            (sizes, judge(run, _LARGEST * largest * (run.magnitude or 1.0)))
            for sizes, run in errors.graph
        ]
        for sizes, comparison in compared:
            if not comparison.passed:
                detail = f"`{name}` at {in_words(sizes)}: {comparison.reason}"
                return trial.result(_NAME, False, detail)
        typical, allowed = errors.typical()
        if len(errors.graph) >= _ENOUGH and not typical <= allowed:
            detail = (
                f"`{name}` is typically off by {typical:.3g} of its largest value (root mean "
                f"square, median over {len(errors.graph)} lengths), budget {allowed:.3g}"
            )
            return trial.result(_NAME, False, detail, typical=typical, budget=allowed)
        most = max((comparison for _, comparison in compared), key=_share)
        figures[name] = {**most.figures, "typical": typical, "typical_budget": allowed}
        worst = most if worst is None else max(worst, most, key=_share)
    assert worst is not None  # a graph has outputs, a trial has lengths
    lengths = trial.lengths
    detail = (
        f"{len(lengths)} lengths from {min(lengths)} to {max(lengths)} tokens; largest error "
        f"{worst.max_abs:.2g}, budget {worst.budget:.2g}"
    )
    return trial.result(_NAME, True, detail, **figures)


def _share(comparison: Comparison) -> float:
    """How much of its budget an error takes."""
    return comparison.max_abs / comparison.budget if comparison.budget else 0.0


def _typical(runs: Sequence[Deviation]) -> float:
    right = [run.relative(run.rms) for run in runs if not run.fault]
    return float(np.median(right)) if right else 0.0


def _runs(
    trial: Trial, yardstick: Yardstick, feeds: Feeds, samples: int
) -> tuple[Mapping[str, NDArray[Any]], dict[str, Mapping[str, NDArray[Any]]]]:
    """What the oracle says, and honest runs by their kind."""
    wide = widened(feeds)
    want = yardstick.oracle(wide)
    honest = {"plain": yardstick.baseline(feeds)}
    if yardstick.rounded is not None:
        for sample in range(samples):
            honest[f"rounded {sample}"] = yardstick.rounded(wide, trial.seed + sample)
    contract = trial.feeder.contract
    blanked = {kind: blank_unused(contract, feeds, run) for kind, run in honest.items()}
    return blank_unused(contract, feeds, want), dict(blanked)


def _sampled(lengths: Sequence[int]) -> set[int]:
    """A few of `lengths`, from the shortest to the longest."""
    places = np.linspace(0, len(lengths) - 1, min(_SAMPLED_LENGTHS, len(lengths)))
    return {lengths[round(place)] for place in places}
