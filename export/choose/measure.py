"""Time forms on the machine they are for, and assign them to lengths by what was measured.

Each is a graph of its own in a process of its own; they take turns. The assignment of forms to
lengths with the least product of times wins, where every switch has to earn its keep.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations, permutations
from pathlib import Path

from causal_attn.attention.spec import AttentionSpec
from causal_attn.errors import CausalAttnError
from causal_attn.export.choose.choice import Choice
from causal_attn.export.forms.form import Form
from causal_attn.machine.provider import Provider
from causal_attn.package.contract import TensorContract
from causal_attn.timing.model import model_worker
from causal_attn.timing.process import Worker, WorkerFailed

__all__ = [
    "LONGEST_SWITCH",
    "MEASURE_LENGTHS",
    "busy",
    "cores",
    "load",
    "measured_choice",
    "time_models",
]

MEASURE_LENGTHS: tuple[int, ...] = (16, 64, 128, 256, 512, 1024, 2048)
"""Tokens that forms are timed at, unless the caller declares a range of its own."""

LONGEST_SWITCH = 1024
"""No switch lies beyond: the checks run on both sides of each, against a float64 oracle that holds
``[tokens, tokens]``."""

SWITCH_COST = 0.05
"""What a switch must save, as a share of the time at one of the lengths: less is noise."""

ROUNDS = 5
TURN_SECONDS = 0.02

BUSY = 0.75
"""Load for each core above which nothing is measured."""

HOPELESS = 1.5
"""A form that is this many times behind at a length gets no further turn there."""

_SIZES = {"batch": 1, "heads": 8, "kv_heads": 8, "features": 64, "past_tokens": 0}
"""Of dims that the spec leaves open."""


def busy() -> str:
    """Why this machine must not be measured on now, as a clause; empty: it may.

    On a busy machine a form of many short steps, each of which waits for all threads, comes out
    slower than it is: a choice made at a load of 1.96 on 2 cores was 1.4 to 3 times behind the
    fixed table from 2,048 tokens on.
    """
    now, count = load(), cores()
    if now is None or now <= BUSY * count:
        return ""
    return f"the machine was busy, at a load of {now} on {count} cores"


def load() -> float | None:
    """Processes that wanted to run in the last minute, on average."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cores() -> int:
    """Of this process, which may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def time_models(
    models: Mapping[str, Path],
    inputs: Sequence[TensorContract],
    spec: AttentionSpec | None,
    provider: Provider,
    lengths: Sequence[int],
    on_step: Callable[[str], None],
) -> dict[str, dict[int, float]]:
    """Milliseconds of the fastest call, for each model and length.

    The fastest, not the median: whatever else the machine does can only add to a time. Lengths
    where a model does not run, such as behind its table of positions, are left out; so may be all.

    Raises:
        EngineError: A model cannot be loaded in a process of its own, or that process ended.
    """
    fixed = spec or AttentionSpec()
    given = {
        "heads": fixed.num_heads,
        "kv_heads": fixed.num_kv_heads,
        "features": fixed.head_dim,
    }
    sizes = _SIZES | {name: value for name, value in given.items() if value is not None}
    named = {dim for tensor in inputs for dim in tensor.dims if isinstance(dim, str)}
    times: dict[str, dict[int, float]] = {name: {} for name in models}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(model_worker(path, provider))
            for name, path in models.items()
        }
        for length in lengths:
            on_step(f"measure at {length} tokens")
            case = {dim: sizes.get(dim, 1) for dim in named} | {"tokens": length}
            try:
                for worker in workers.values():
                    worker.ask("prepare", sizes=case)
            except CausalAttnError as error:
                # What fails without words of ours is a defect, not a length that is too long.
                alive = all(worker.runs() for worker in workers.values())
                if isinstance(error, WorkerFailed) or not alive:
                    raise
                continue
            for name, spent in _time_in_turns(workers).items():
                times[name][length] = spent
    return times


def _time_in_turns(workers: Mapping[str, Worker]) -> dict[str, float]:
    found: dict[str, float] = {}
    for _ in range(ROUNDS):
        best = min(found.values(), default=math.inf)
        for name, worker in workers.items():
            known = found.get(name, math.inf)
            if known <= HOPELESS * best:
                answer = worker.ask("turn", seconds=TURN_SECONDS)
                found[name] = min(known, 1e3 * answer["seconds"])
    return found


def measured_choice(
    usable: Mapping[str, Form],
    times: Mapping[str, Mapping[int, float]],
    provider: Provider,
    refused: Mapping[str, str],
    most_forms: int = 4,
) -> Choice:
    """The assignment of forms to lengths with the least product of times.

    Args:
        usable: By name, those in `times`.
        times: Milliseconds by form and length, all at the same lengths.
        provider: Where they were taken.
        refused: Forms that did not take part, with the reason.
        most_forms: Of one graph.
    """
    lengths = sorted(next(iter(times.values())))

    def cost(assigned: tuple[tuple[str, ...], tuple[int, ...]]) -> float:
        names, cuts = assigned
        spans = zip(names, (0, *cuts), (*cuts, len(lengths)), strict=True)
        spent = sum(
            math.log(times[name][length])
            for name, start, end in spans
            for length in lengths[start:end]
        )
        return spent + SWITCH_COST * len(cuts)

    names, cuts = min(_assignments(tuple(times), lengths, most_forms), key=cost)
    return Choice(
        forms=tuple(usable[name] for name in names),
        last=tuple(_between(lengths, cut) for cut in cuts),
        reason={
            "rule": "least product of measured times",
            "provider": str(provider),
            "milliseconds": {
                name: {str(length): round(spent, 4) for length, spent in by_length.items()}
                for name, by_length in times.items()
            },
            "refused": dict(refused),
        },
    )


def _assignments(
    names: tuple[str, ...], lengths: Sequence[int], most_forms: int
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Every sequence of distinct forms with every way to cut `lengths` among them."""
    allowed = [cut for cut in range(1, len(lengths)) if _between(lengths, cut) <= LONGEST_SWITCH]
    for count in range(1, min(len(names), most_forms) + 1):
        for order in permutations(names, count):
            for cuts in combinations(allowed, count - 1):
                yield order, cuts


def _between(lengths: Sequence[int], cut: int) -> int:
    """The last length before a switch: halfway, by ratio, between two that were measured."""
    return math.isqrt(lengths[cut - 1] * lengths[cut])
