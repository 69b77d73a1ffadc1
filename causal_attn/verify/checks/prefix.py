"""Whether rows depend on how long the input is: those of a prefix must be those of the whole.

A table of rotary angles that is exchanged above a length, a base that follows the length, a norm
over the number of tokens: such a graph may be causal, for no value of a later token reaches an
earlier row, and still say something else of a sequence than of its beginning. Nobody who decodes
token by token gets what the whole gives.
"""

from __future__ import annotations

import time

import numpy as np

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.coverage import ranges
from causal_attn.verify.checks.part_calls import PartCalls, Rows
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.agreement import Agreement, agreement
from causal_attn.verify.feeds.feeder import Sizes

__all__ = ["check_prefixes_agree"]

_NAME = "prefixes agree"

_LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 64, 65, 128, 129, 256)

_SECONDS = 5.0
"""Time after which no more prefixes are begun, of a model whose calls are slow."""


def check_prefixes_agree(trial: Trial) -> Check | None:
    """Rows of the longest call that runs against those of its prefixes.

    Prefixes end at the lengths in which the graph may change, and at others; where time ends,
    those that change first are done. A disagreement counts if it is there for other values too.
    ``None`` where the number of tokens is fixed, or inputs cannot be cut at a token.
    """
    feeder = trial.feeder
    tokens = feeder.contract.tokens
    whole = trial.reach
    if tokens in feeder.pinned or whole < 2 or not feeder.watched():
        return None
    (sizes,) = feeder.cases((whole,))
    if not _can_be_cut(trial, sizes):
        return None
    turning = [side - 1 for side in trial.turning_lengths] + list(trial.turning_lengths)
    lengths = [n for n in dict.fromkeys((*turning, *_LENGTHS, whole - 1)) if 1 <= n < whole]
    allowed = [n for n in lengths if feeder.contract.lengths_within([n]) == (n,)]
    try:
        worst, done = _compare(trial, sizes, allowed, trial.rng(_NAME))
        if not worst.passed:
            again, _ = _compare(trial, sizes, done[-1:], trial.rng(f"{_NAME} again"))
            worst = again if again.passed else worst
    except CausalAttnError as error:
        return trial.did_not_run("runs", f"a prefix of {whole} tokens does not run: {error}")
    figures = {"max_abs": worst.max_abs, "budget": worst.budget, "lengths": sorted(done)}
    if not worst.passed:
        detail = (
            f"`{worst.output}` of {done[-1]} tokens is off by {worst.max_abs:.3g} from the first "
            f"{done[-1]} rows of {whole} tokens, budget {worst.budget:.3g}: rows depend on how "
            "long the input is"
        )
        return trial.result(_NAME, False, detail, whole=whole, **figures)
    detail = (
        f"rows of {whole} tokens are those of the first {ranges(done)} within "
        f"{worst.max_abs:.2g}, budget {worst.budget:.2g}"
    )
    return trial.result(_NAME, True, detail, whole=whole, **figures)


def _can_be_cut(trial: Trial, sizes: Sizes) -> bool:
    """Whether every input that grows with the tokens has an axis with a row for each."""
    feeder = trial.feeder
    shorter = {**sizes, feeder.contract.tokens: sizes[feeder.contract.tokens] - 1}
    for tensor in feeder.contract.inputs:
        if tensor.name in feeder.fixed:
            continue
        changed = {
            axis
            for axis, (long, short) in enumerate(
                zip(feeder.shape(tensor, sizes), feeder.shape(tensor, shorter), strict=True)
            )
            if long != short
        }
        if changed != set(feeder.token_axes(tensor)):
            return False
    return True


def _compare(
    trial: Trial, sizes: Sizes, lengths: list[int], rng: np.random.Generator
) -> tuple[Agreement, list[int]]:
    """The worst agreement, and the lengths that were compared; the first that fails ends it."""
    calls = PartCalls(trial.session, trial.feeder, sizes, rng)
    whole = calls.rows(calls.run((sizes[trial.feeder.contract.tokens],)), caches=True)
    worst, done = Agreement(), []
    started = time.monotonic()
    for length in lengths:
        rows = calls.rows(calls.run((length,)), caches=True)
        found = agreement(rows, _leading(whole, rows), trial.honest)
        done.append(length)
        if not worst.output or found.share > worst.share:
            worst = found
        if not worst.passed or time.monotonic() - started > _SECONDS:
            break
    return worst, done


def _leading(whole: Rows, rows: Rows) -> Rows:
    """The corner of each of `whole` that is as large as in `rows`: of weights fewer keys too."""
    return {
        name: whole[name][tuple(slice(0, size) for size in array.shape)]
        for name, array in rows.items()
    }
