"""At which sizes a model of others runs: found by trying, said in the report, never guessed.

A table of positions has an end; ONNX Runtime's `GroupQueryAttention` refuses several sequences
with a past and several new tokens on the CPU. Such sizes are left out of the checks by name. What
fails between sizes that run is another matter and fails its check.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal_attn.errors import CausalAttnError
from causal_attn.runtime import Session
from causal_attn.verify.feeds.feeder import Sizes
from causal_attn.verify.interface.discover import BATCH, PAST, TOKENS, Interface
from causal_attn.verify.interface.graph_lengths import GraphLengths

__all__ = ["Runnable", "find_reach", "find_runnable"]


@dataclass(frozen=True, kw_only=True)
class Runnable:
    """Sizes that a model runs at.

    Attributes:
        interface: Its feeder keeps to them.
        lengths: Tokens; empty if nothing runs.
        positions: Of a past and new tokens together, the most that was seen to run.
        reach: Of new tokens without a past, the most that was seen to run.
        notes: What was left out and why.
        faults: Dims that are declared as dynamic and run at one size only, a clause each.
        reason: With no lengths: what the engine said.
    """

    interface: Interface
    lengths: tuple[int, ...]
    positions: int = 0
    reach: int = 0
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    reason: str = ""


def find_runnable(
    session: Session,
    interface: Interface,
    lengths: Sequence[int],
    marks: GraphLengths,
) -> Runnable:
    """Try the extremes: the longest lengths, several sequences, a past, and both together.

    Args:
        session: Of the model.
        interface: Of the model.
        lengths: Tokens that are asked for.
        marks: Numbers of the graph. Lengths beyond those that it compares with are tried if that
            takes no longer than `_SECONDS`; all are where no length of `lengths` runs.
    """
    fixed = interface.fixed_tokens
    lengths = sorted(lengths if fixed is None else (fixed,))
    pinned = dict(interface.feeder.pinned)
    notes: list[str] = []
    faults: list[str] = []
    some = next((length for length in lengths if length > 1), lengths[0])
    plain = {TOKENS: some, BATCH: 1, PAST: 0, **pinned}
    if reason := _failure(session, interface, plain):
        frozen = _frozen(session, interface, plain, (*lengths, *marks.all))
        if not frozen:
            return Runnable(interface=interface, lengths=(), reason=reason)
        pinned |= frozen
        plain |= frozen
        some = plain[TOKENS]
        lengths = [some] if TOKENS in frozen else lengths
        faults += [
            f"{dim!r} is declared as dynamic and runs at {size} alone ({reason})"
            for dim, size in frozen.items()
        ]
        interface = replace(interface, feeder=replace(interface.feeder, pinned=pinned))
    if BATCH not in pinned and (why := _failure(session, interface, {**plain, BATCH: 2})):
        pinned[BATCH] = 1
        faults.append(f"{BATCH!r} is declared as dynamic, and two sequences do not run ({why})")
    single_past = False
    if interface.past and PAST not in pinned:
        behind = {**plain, PAST: 3}
        if why := _failure(session, interface, behind):
            pinned[PAST] = 0
            notes.append(f"a past with {some} new tokens: the model does not run it ({why})")
        elif BATCH not in pinned and (why := _failure(session, interface, {**behind, BATCH: 2})):
            single_past = True
            notes.append(
                f"several sequences with a past and {some} new tokens: the model does not run "
                f"them ({why})"
            )
    feeder = replace(interface.feeder, pinned=pinned, single_past=single_past)
    interface = replace(interface, feeder=feeder)
    longest, why = _longest(session, interface, lengths)
    usable = [length for length in lengths if length < longest] + [longest]
    if longest < lengths[-1]:
        notes.append(f"lengths above {longest}: the model does not run there ({why})")
    reach = longest
    left: list[str] = []
    if interface.fixed_tokens is None:
        reach, left = find_reach(session, interface, max(_FAR, longest), marks, runs=longest)
    past = pinned.get(PAST, _LONGEST_PAST) if interface.past else 0
    return Runnable(
        interface=interface,
        lengths=tuple(usable),
        positions=max(min(reach, _FAR), longest + past),
        reach=reach,
        notes=(*notes, *left),
        faults=tuple(faults),
    )


def _frozen(
    session: Session, interface: Interface, plain: Sizes, lengths: Sequence[int]
) -> dict[str, int]:
    """The dims among those of tokens and sequences that run at one size, which is no usual one.

    Empty where nothing is found that runs, or where several lengths do.
    """
    pinned = interface.feeder.pinned
    batches = (pinned[BATCH],) if BATCH in pinned else (1, 2, 3)
    tokens = (pinned[TOKENS],) if TOKENS in pinned else sorted(set(lengths))[:_MOST_TRIED]
    for batch in batches:
        runs = [
            length
            for length in tokens
            if length <= _FAR
            and not _failure(session, interface, {**plain, TOKENS: length, BATCH: batch})
        ]
        if len(runs) == 1 or (runs and batch != batches[0]):
            frozen = {TOKENS: runs[0]} if TOKENS not in pinned and len(runs) == 1 else {}
            return frozen | ({BATCH: batch} if batch != batches[0] else {})
    return {}


def find_reach(
    session: Session, interface: Interface, far: int, marks: GraphLengths, *, runs: int = 1
) -> tuple[int, list[str]]:
    """The most tokens that run without a past, of `far` and those behind numbers of the graph.

    Args:
        session: Of the model.
        interface: Of the model.
        far: Tokens that are to be reached in any case.
        marks: Numbers of the graph. Lengths behind those that it compares with are tried if a call
            takes no longer than `_SECONDS`.
        runs: Tokens that are known to run, at most `far`.

    Returns:
        The tokens, and what was left out and why.
    """
    past = interface.feeder.pinned.get(PAST, 0)

    def fails(length: int) -> str:
        return _failure(session, interface, {TOKENS: length, BATCH: 1, PAST: past})

    def seconds(length: int) -> float:
        """Of a call that runs, the faster of two: another process may have had the machine.

        Infinite for one that does not run.
        """
        took = math.inf
        for _ in range(2):
            started = time.monotonic()
            if fails(length):
                return math.inf
            took = min(took, time.monotonic() - started)
        return took

    if why := fails(far):
        reach, why = _last(runs, far, why, fails)
        return reach, [f"lengths above {reach}: the model does not run there ({why})"]
    reach, at, took = far, far, seconds(far)
    left: list[str] = []
    for mark in sorted(set(marks.compared)):
        if mark + 1 < reach:
            continue
        # Attention grows with the square, what a call takes besides does not.
        while took * (mark / at) ** 2 > _SECONDS and 4 * at < mark and took * 16 <= _SECONDS:
            at, took = 4 * at, seconds(4 * at)
        if took * (mark / at) ** 2 > _SECONDS:
            left.append(
                f"lengths from {mark} on, with which the graph compares a number: a call would "
                f"take more than {_SECONDS} seconds, or does not run"
            )
        elif (found := seconds(mark + _BEHIND)) < math.inf:
            reach = at = mark + _BEHIND
            took = found
    return reach, left[:1]


def _longest(session: Session, interface: Interface, lengths: Sequence[int]) -> tuple[int, str]:
    """The largest number of tokens up to ``lengths[-1]`` that runs, and what ends it.

    A table has one end: what is longer than it fails, what is shorter runs. So the end is found by
    halving. The shortest of `lengths` is taken to run.
    """
    pinned = interface.feeder.pinned

    def fails(length: int) -> str:
        (sizes,) = interface.feeder.cases((length,))
        return _failure(session, interface, {**sizes, PAST: pinned.get(PAST, _LONGEST_PAST)})

    why = fails(lengths[-1]) if len(lengths) > 1 else ""
    if not why:
        return lengths[-1], ""
    return _last(lengths[0], lengths[-1], why, fails)


def _last(runs: int, ends: int, why: str, fails: Callable[[int], str]) -> tuple[int, str]:
    """The last length that runs, between one that does and one that fails for `why`."""
    while ends - runs > 1:
        middle = (runs + ends) // 2
        if reason := fails(middle):
            ends, why = middle, reason
        else:
            runs = middle
    return runs, why


_LONGEST_PAST = 33
"""As the feeder's cases have it."""

_FAR = 257
"""Tokens beyond those that parity is held at: as far as probes and the proof go."""

_MOST_TRIED = 40
"""Lengths at which a graph is tried that runs at none of the usual ones."""

_BEHIND = 3
"""Tokens behind a number that the graph compares with: a cache filled below it, read above it."""

_SECONDS = 0.5
"""Of one call at a far length; the checks make a dozen of them."""


def _failure(session: Session, interface: Interface, sizes: Sizes) -> str:
    """What the engine says of a call, in one line; empty if it runs."""
    (case,) = interface.feeder.cases((sizes[TOKENS],))
    try:
        session.run(interface.feeder.make({**case, **sizes}, np.random.default_rng(0)))
    except CausalAttnError as error:
        return str(error).splitlines()[0][:300]
    return ""
