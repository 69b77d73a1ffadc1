"""Whether a graph says what PyTorch says: every output against a float64 oracle, within a budget.

What is allowed is what honest runs are off by, see `causal_attn.verify.compare.honest_errors`:
plain torch (or numpy, where there is no torch) at every length and, where the yardstick has them,
runs of the oracle's own computation with every result rounded at random, at a few lengths and
wherever a graph would be refused else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import in_words
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.honest_errors import HonestErrors
from causal_attn.verify.feeds.cache_slots import blank_unused
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.oracle.yardstick import Yardstick, widened

__all__ = ["check_parity"]

_NAME = "parity"

_SAMPLES = 2
"""Randomly rounded runs at each length that has any."""
_SAMPLED_LENGTHS = 4
"""How many lengths have any: such a run takes several times as long as a plain one."""
_SECOND_LOOK = 8
"""Randomly rounded runs of a call whose error is too large for what was seen until then. A fault
is in none of them, so that they can only clear what rounding alone does there."""


def check_parity(trial: Trial) -> Check | None:
    """Run fresh inputs through the graph, the oracle and honest runs at every length.

    ``None`` without a yardstick.
    """
    feeder, yardstick, rng = trial.feeder, trial.yardstick, trial.rng(_NAME)
    if yardstick is None:
        return None
    errors = HonestErrors()
    calls: dict[str, Feeds] = {}
    sampled = _sampled(trial.lengths)
    for sizes in feeder.cases(trial.lengths):
        feeds = feeder.make(sizes, rng)
        where = f"at {in_words(sizes)}"
        try:
            results = blank_unused(feeder.contract, feeds, trial.session.run(feeds))
        except CausalAttnError as error:
            return trial.did_not_run(_NAME, f"does not run {where}: {error}")
        samples = _SAMPLES if sizes[feeder.contract.tokens] in sampled else 0
        try:
            want, honest = _runs(trial, yardstick, feeds, samples)
        except CausalAttnError as error:
            return trial.result(_NAME, None, f"the oracle does not run {where}: {error}")
        if fault := errors.add(where, results, want, honest):
            return trial.result(_NAME, False, fault)
        calls[where] = feeds
    found = errors.judged()
    while found.call in calls and yardstick.rounded is not None:
        feeds = calls.pop(found.call)
        # Results of all calls of a language model would be gigabytes: they are computed anew.
        try:
            want, honest = _runs(trial, yardstick, feeds, _SECOND_LOOK)
        except CausalAttnError:
            break
        errors.again(found.call, want, honest)
        found = errors.judged()
    if found.fault or found.worst is None:
        return trial.result(_NAME, False, found.fault)
    if found.powerless:
        return trial.result(_NAME, None, found.powerless, **found.figures)
    lengths, worst = trial.lengths, found.worst
    detail = (
        f"{len(lengths)} lengths from {min(lengths)} to {max(lengths)} tokens; largest error "
        f"{worst.max_abs:.2g}, budget {worst.budget:.2g}"
    )
    return trial.result(_NAME, True, detail, **found.figures)


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
