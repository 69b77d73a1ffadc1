"""Whether the future is invisible: finite perturbations on the real provider.

From a cut on, every token input is replaced, once by a small and once by a huge finite amount, so
that scores lie far apart and an additive mask of -1e4 gives itself away. Rows before the cut must
not change in a single bit. NaN and infinity are not used: 0 * NaN is NaN, which accuses graphs
that are right.

A provider whose kernels are not repeatable is held to the rounding that its run-to-run noise
shows, output by output; the noise is measured and printed. Noise that no rounding makes could hide
anything: then nothing is decided, and the check is called "randomness".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.coverage import covered
from causal_attn.verify.checks.rows import HUGE, SMALL, Results, in_words, rows_of
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.rounding import distance, most_rounding, rounding_budget
from causal_attn.verify.feeds.feeder import Feeder, Sizes

__all__ = ["FUTURE", "check_future_is_invisible", "first_change"]

FUTURE = "future is invisible"

_REPEATS = 3

_SECONDS = 8.0
"""Time after which lengths in which the graph may change are left out, of a slow model."""


def check_future_is_invisible(trial: Trial) -> Check | None:
    """Replace the future; earlier rows of every output must stay bitwise equal."""
    feeder, rng = trial.feeder, trial.rng(FUTURE)
    if trial.interface is not None and trial.interface.rowless:
        return None
    if not feeder.watched():
        tokens = feeder.contract.tokens
        return trial.result(
            FUTURE, None, f"no output has a dim `{tokens}`: name the dims of the tokens"
        )
    noise = {tensor.name: 0.0 for tensor in feeder.watched()}
    probes = 0
    done: list[Sizes] = []
    started = time.monotonic()
    for sizes, changes, asked in _calls(trial):
        if not asked and time.monotonic() - started > _SECONDS:
            break
        try:
            fault = _probe(trial, sizes, changes, noise, rng)
        except CausalAttnError as error:
            # It says nothing about the future.
            return trial.did_not_run("runs", f"does not run at {in_words(sizes)}: {error}")
        if fault is not None:
            return fault
        probes += len(changes)
        done.append(sizes)
    worst = max(noise.values())
    equal = "bitwise equal" if worst == 0 else f"equal within run-to-run noise {worst:.2g}"
    return trial.result(
        FUTURE,
        True,
        f"{probes} probes {covered(done, feeder.contract.tokens)}: the past {equal}",
        probes=probes,
        noise=worst,
        lengths=sorted({sizes[feeder.contract.tokens] for sizes in done}),
    )


Changes = list[tuple[int, float]]
"""Where the future begins, and by how much it is changed."""


def _many(tokens: int) -> Changes:
    cuts = sorted({1, tokens // 2, tokens - 1} - {0})
    return [(cut, amount) for cut in cuts for amount in (SMALL, HUGE)]


def _few(tokens: int) -> Changes:
    """Where the graph may change: a leak that is there at one length shows in any call."""
    return [(1, HUGE), (tokens - 1, SMALL)] if tokens > 1 else []


def _calls(trial: Trial) -> Iterator[tuple[Sizes, Changes, bool]]:
    """Sizes, probes there, and whether they are made however long that takes."""
    tokens = trial.feeder.contract.tokens
    probed = trial.probe_lengths
    for sizes in trial.feeder.cases(probed):
        yield sizes, _many(sizes[tokens]), True
    for sizes in trial.feeder.cases([n for n in trial.turning_lengths if n not in probed]):
        # A table that new tokens fit into alone has no room for a past too.
        pinned = "past_tokens" in trial.feeder.pinned
        past = {} if pinned else {"past_tokens": 0}
        yield {**sizes, **past}, _few(sizes[tokens]), False


def _probe(
    trial: Trial,
    sizes: Sizes,
    changes: Changes,
    noise: dict[str, float],
    rng: np.random.Generator,
) -> Check | None:
    """All probes at one length; what is wrong, if anything. `noise` is raised to what is heard."""
    feeder, session = trial.feeder, trial.session
    tokens = sizes[feeder.contract.tokens]
    feeds = feeder.make(sizes, rng)
    base = session.run(feeds)
    if loud := _listen(noise, base, session.run(feeds)):
        return _randomness(trial, *loud, sizes)
    for cut, amount in changes:
        changed = session.run(feeder.perturb(feeds, range(cut, tokens), amount, rng))
        if first_change(feeder, base, changed, tokens, cut, noise) is None:
            continue
        # What flickers now and then may have been quiet in the first two runs.
        for _ in range(_REPEATS):
            if loud := _listen(noise, base, session.run(feeds)):
                return _randomness(trial, *loud, sizes)
        found = first_change(feeder, base, changed, tokens, cut, noise)
        if found is not None:
            output, row = found
            detail = (
                f"`{output}` at position {row} changes when inputs from position {cut} on change "
                f"({tokens} tokens, amount {amount:g}): it sees the future"
            )
            figures = {"output": output, "row": row, "cut": cut, "tokens": tokens}
            return trial.result(FUTURE, False, detail, **figures)
    return None


def _listen(noise: dict[str, float], base: Results, again: Results) -> tuple[str, float] | None:
    """Raise `noise` to what two equal runs differ by; output and amount that no rounding is."""
    for name, before in noise.items():
        heard = distance(base[name], again[name])
        if not heard <= most_rounding(base[name]):
            return name, heard
        noise[name] = max(before, heard)
    return None


def _randomness(trial: Trial, output: str, noise: float, sizes: Sizes) -> Check:
    detail = (
        f"`{output}` differs by {noise:.3g} between two equal runs at {in_words(sizes)}, which no "
        "rounding does: whether it sees the future cannot be told"
    )
    return trial.result("randomness", None, detail, output=output, noise=noise)


def first_change(
    feeder: Feeder,
    base: Results,
    changed: Results,
    tokens: int,
    cut: int,
    noise: Mapping[str, float],
) -> tuple[str, int] | None:
    """The first output and position before `cut` that differ; a cache in front is < 0."""
    for tensor in feeder.watched():
        old, new = rows_of(feeder, tensor, base), rows_of(feeder, tensor, changed)
        past = len(old) - tokens
        measured = noise[tensor.name]
        # Two runs show some of the noise, not the most there can be.
        allowed = rounding_budget(measured, {tensor.name: old}) if measured else 0.0
        for row in range(past + cut):
            same = old[row].tobytes() == new[row].tobytes()
            if not same and not distance(old[row], new[row]) <= allowed:
                return tensor.name, row - past
    return None
