"""Decode equivalence: one graph must say the same however the tokens are handed to it.

The whole sequence at once, token by token, and in chunks, each call continuing the cache of the
one before: at a few tokens, across every length at which the graph may change, and up to the
longest that runs. The rows may lie apart by what honest runs of the graph are off by.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.coverage import ranges
from causal_attn.verify.checks.part_calls import PartCalls
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.agreement import Agreement, agreement
from causal_attn.verify.interface.naming import BATCH, TOKENS

__all__ = ["check_decode"]

_NAME = "decode is equivalent"

_LENGTH = 11
_CHUNKS = (4, 1, 3, 3)

_SECONDS = 8.0
"""Time after which no further lengths are begun, of a model whose calls are slow."""

Way = tuple[str, int, tuple[int, ...]]
"""What it is called, how many sequences, and the tokens of each call."""


def check_decode(trial: Trial) -> Check | None:
    """Run sequences whole, token by token and in chunks; ``None`` for a graph with no cache."""
    interface, feeder = trial.interface, trial.feeder
    if interface is None or not interface.cache or TOKENS in feeder.pinned:
        return None
    if all(name in dict(interface.cache).values() for name in interface.outputs):
        return None
    figures: dict[str, Any] = {}
    worst, lengths = Agreement(), []
    steps: tuple[int, ...] = ()
    started = time.monotonic()
    try:
        for way in _ways(trial):
            name, _, steps = way
            found = _compare(trial, way, trial.rng(_NAME))
            if not found.passed:
                # A value at the edge of a choice, such as one among experts, may fall either way.
                found = _compare(trial, way, trial.rng(f"{_NAME} again"))
            figures[name] = {"max_abs": found.max_abs, "budget": found.budget}
            lengths.append(sum(steps))
            if not found.passed:
                detail = (
                    f"{name} is off by {found.max_abs:.3g} from the whole of {sum(steps)} tokens "
                    f"in `{found.output}`, budget {found.budget:.3g}"
                )
                return trial.result(_NAME, False, detail, lengths=lengths, **figures)
            worst = max(worst, found, key=lambda one: one.share)
            if time.monotonic() - started > _SECONDS:
                break
    except CausalAttnError as error:
        return trial.result(_NAME, False, f"does not decode {sum(steps)} tokens: {error}")
    detail = (
        f"whole, token by token and in chunks agree within {worst.max_abs:.2g}, budget "
        f"{worst.budget:.2g}, at {ranges(lengths)} tokens"
    )
    return trial.result(_NAME, True, detail, lengths=lengths, **figures)


def _ways(trial: Trial) -> list[Way]:
    """How sequences are cut, the short ones first."""
    several = 1 if BATCH in trial.feeder.pinned else 2
    ways: list[Way] = [
        ("token by token", several, (1,) * _LENGTH),
        ("in chunks", 1, _CHUNKS),
    ]
    for length in trial.turning_lengths:
        # From below to above the length, one token at a time; sides of one number are one way.
        before = length - 2
        if before >= _LENGTH and length + 2 <= trial.reach and length - 1 not in trial.marks:
            ways.append((f"token by token across {length}", 1, (before, 1, 1, 1, 1)))
    if trial.reach > _LENGTH:
        part = trial.reach // 3
        rest = trial.reach - 2 * part - 2
        ways.append((f"in chunks up to {trial.reach}", 1, (part, 1, part, rest, 1)))
    return [way for way in ways if min(way[2]) > 0]


def _compare(trial: Trial, way: Way, rng: np.random.Generator) -> Agreement:
    _, batch, steps = way
    (sizes,) = trial.feeder.cases((sum(steps),))
    calls = PartCalls(trial.session, trial.feeder, {**sizes, BATCH: batch}, rng)
    whole = calls.rows(calls.run((sum(steps),)))
    return agreement(calls.rows(calls.run(steps)), whole, trial.honest)
