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

from collections.abc import Mapping

import numpy as np

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import HUGE, SMALL, Results, in_words, rows_of
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.rounding import distance, most_rounding, rounding_budget
from causal_attn.verify.feeds.feeder import Feeder, Sizes

__all__ = ["FUTURE", "check_future_is_invisible"]

FUTURE = "future is invisible"

_REPEATS = 3


def check_future_is_invisible(trial: Trial) -> Check:
    """Replace the future; earlier rows of every output must stay bitwise equal."""
    feeder, rng = trial.feeder, trial.rng(FUTURE)
    if not feeder.watched():
        tokens = feeder.contract.tokens
        return trial.result(
            FUTURE, None, f"no output has a dim `{tokens}`: name the dims of the tokens"
        )
    noise = {tensor.name: 0.0 for tensor in feeder.watched()}
    probes = 0
    for sizes in feeder.cases(trial.probe_lengths):
        try:
            fault = _probe(trial, sizes, noise, rng)
        except CausalAttnError as error:
            # It says nothing about the future.
            return trial.did_not_run("runs", f"does not run at {in_words(sizes)}: {error}")
        if fault is not None:
            return fault
        probes += len(_probes(sizes[feeder.contract.tokens]))
    worst = max(noise.values())
    equal = "bitwise equal" if worst == 0 else f"equal within run-to-run noise {worst:.2g}"
    lengths = trial.probe_lengths
    return trial.result(
        FUTURE,
        True,
        f"{probes} probes at {min(lengths)} to {max(lengths)} tokens: the past {equal}",
        probes=probes,
        noise=worst,
    )


def _probes(tokens: int) -> list[tuple[int, float]]:
    """Where the future begins, and by how much it is changed."""
    cuts = sorted({1, tokens // 2, tokens - 1} - {0})
    return [(cut, amount) for cut in cuts for amount in (SMALL, HUGE)]


def _probe(
    trial: Trial, sizes: Sizes, noise: dict[str, float], rng: np.random.Generator
) -> Check | None:
    """All probes at one length; what is wrong, if anything. `noise` is raised to what is heard."""
    feeder, session = trial.feeder, trial.session
    tokens = sizes[feeder.contract.tokens]
    feeds = feeder.make(sizes, rng)
    base = session.run(feeds)
    if loud := _listen(noise, base, session.run(feeds)):
        return _randomness(trial, *loud, sizes)
    for cut, amount in _probes(tokens):
        changed = session.run(feeder.perturb(feeds, range(cut, tokens), amount, rng))
        if _first_change(feeder, base, changed, tokens, cut, noise) is None:
            continue
        # What flickers now and then may have been quiet in the first two runs.
        for _ in range(_REPEATS):
            if loud := _listen(noise, base, session.run(feeds)):
                return _randomness(trial, *loud, sizes)
        found = _first_change(feeder, base, changed, tokens, cut, noise)
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


def _first_change(
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
