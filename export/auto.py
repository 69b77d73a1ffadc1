"""``form="auto"``: which form is used up to how many tokens, by measurement or by a fixed table.

Only forms that may be used and that passed their checks take part. They are timed on the target's
provider, each in a process of its own, taking turns; the assignment of forms to lengths with the
least product of times wins, where every switch has to earn its keep.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

import torch
from torch.export import ExportedProgram

from causal_attn.contract import TensorContract
from causal_attn.errors import CheckError, EngineError, ProviderError
from causal_attn.export.choice import Choice
from causal_attn.export.form_blocked import blocked
from causal_attn.export.forms import FORMS, Form, choose_form
from causal_attn.export.graph_file import check_graph, write_graph
from causal_attn.export.quiet import ExportLog
from causal_attn.export.target import Target
from causal_attn.provider import Provider
from causal_attn.spec import AttentionSpec, CacheKind
from causal_attn.stopwatch import Stopwatch

__all__ = [
    "LONGEST_SWITCH",
    "MEASURE_LENGTHS",
    "Measuring",
    "candidates",
    "choose",
    "fixed_choice",
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

OPSET = 23
"""All branches of a switch have one opset: the oldest with ``Attention``."""

CHECK_LENGTHS = (1, 2, 3, 7, 33, 65, 129, 257)
"""Tokens that a candidate is checked at; the graph that is chosen is checked at all of them."""

ROUNDS = 5
TURN_SECONDS = 0.02

BUSY = 0.75
"""Load for each core above which nothing is measured."""

HOPELESS = 1.5
"""A form that is this many times behind at a length gets no further turn there."""

_SIZES = {"batch": 1, "heads": 8, "kv_heads": 8, "features": 64, "past_tokens": 0}
"""Of dims that the spec leaves open."""


@dataclass(frozen=True)
class Measuring:
    """What is needed to write, check and time candidates.

    Attributes:
        program: What they are written from.
        folder: Made, and filled with them.
        lengths: Tokens to time at.
        log: Gets what torch prints.
        on_step: Called with a few words before each step.
    """

    program: ExportedProgram
    folder: Path
    lengths: Sequence[int]
    log: ExportLog
    on_step: Callable[[str], None]


def choose(
    target: Target,
    dtype: torch.dtype,
    provider: Provider,
    opset: int | None,
    *,
    return_weights: bool,
    measuring: Measuring | None,
) -> tuple[Choice, int]:
    """The forms of `target` on `provider`, and the opset to write them at.

    A module of the user's, and an op that returns its weights, stay ``decomposed``: the one has
    its own attention, and of the forms that return weights it is the only one that is right for
    every dtype, window and provider.

    Args:
        target: What is exported.
        dtype: Its floating point dtype.
        provider: Where it is to run.
        opset: What the caller asked for.
        return_weights: Whether the weights are wanted.
        measuring: To measure on `provider`; ``None``: the fixed table decides, as it does while
            the machine is busy with other work.

    Raises:
        UsageError: No form can be written at `opset`.
    """
    number = OPSET if opset is None else opset
    usable: dict[str, Form] = {}
    refused: dict[str, str] = {}
    if target.spec is not None and not return_weights:
        usable, refused = candidates(target.spec, dtype, provider, number)
    if set(usable) <= {"decomposed"}:
        form, number = choose_form("decomposed", target.spec, dtype, provider, opset)
        rule = "decomposed runs on every provider"
        return Choice(forms=(form,), reason={"rule": rule}), number
    if target.spec is not None and target.spec.cache is CacheKind.STATIC:
        # Of the two only this one writes in place, which no timing of unbound calls shows.
        reason = {"rule": "gqa writes a cache of fixed capacity in place"}
        return Choice(forms=(usable["gqa"],), reason=reason), number
    busy = _busy() if measuring is not None else ""
    if measuring is None or busy:
        choice = fixed_choice(usable, provider)
        if busy:
            choice = replace(choice, reason={"rule": f"fixed table: {busy}"})
    else:
        choice = _measured(usable, refused, target, dtype, provider, number, measuring)
    if choice.name == "decomposed":
        number = choose_form("decomposed", target.spec, dtype, provider, opset)[1]
    return choice, number


def _measured(
    usable: Mapping[str, Form],
    refused: dict[str, str],
    target: Target,
    dtype: torch.dtype,
    provider: Provider,
    opset: int,
    measuring: Measuring,
) -> Choice:
    """Write and check every candidate, then time those that passed."""
    measuring.folder.mkdir()
    cores, load = _cores(), _load()
    usable = {name: blocked(cores) if name == "blocked" else form for name, form in usable.items()}
    passed: dict[str, Path] = {}
    inputs: tuple[TensorContract, ...] = ()
    for name, form in usable.items():
        measuring.on_step(f"write and check {name}")
        alone = Choice(forms=(form,))
        folder = measuring.folder / name
        file, contract = write_graph(
            measuring.program, target, alone, opset, folder, measuring.log
        )
        inputs = contract.inputs
        try:
            check_graph(file, provider, target, dtype, CHECK_LENGTHS, lambda _: None)
        except (CheckError, EngineError, ProviderError) as error:
            refused[name] = str(error)
            continue
        passed[name] = file
    assert target.spec is not None
    times = time_models(
        passed, inputs, target.spec, provider, measuring.lengths, measuring.on_step
    )
    choice = measured_choice(usable, times, provider, refused)
    return replace(choice, reason={**choice.reason, "cores": cores, "load": load})


def _busy() -> str:
    """Why this machine must not be measured on now, as a clause; empty: it may.

    On a busy machine a form of many short steps, each of which waits for all threads, comes out
    slower than it is: a choice made at a load of 1.96 on 2 cores was 1.4 to 3 times behind the
    fixed table from 2,048 tokens on.
    """
    load, cores = _load(), _cores()
    if load is None or load <= BUSY * cores:
        return ""
    return f"the machine was busy, at a load of {load} on {cores} cores"


def _load() -> float | None:
    """Processes that wanted to run in the last minute, on average."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cores() -> int:
    """Of this process, which may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def candidates(
    spec: AttentionSpec | None,
    dtype: torch.dtype,
    provider: Provider,
    opset: int,
) -> tuple[dict[str, Form], dict[str, str]]:
    """Forms that may be used, and those that may not with the reason."""
    usable, refused = {}, {}
    for name, form in FORMS.items():
        reason = form.refusal(spec, dtype, provider, opset)
        if reason is None:
            usable[name] = form
        else:
            refused[name] = reason
    return usable, refused


def fixed_choice(usable: Mapping[str, Form], provider: Provider) -> Choice:
    """The choice without measuring; the same on every machine.

    From the figures in `causal_attn.export.form_blocked` and these, one Zen 4 core, 16 heads of
    64, float32, ratio to torch SDPA: at 16, 64, 128, 256, 512 and 1,024 tokens ``attention`` has
    1.4, 1.3, 1.3, 1.1, 1.0, 0.7 and ``blocked`` 0.4, 0.9, 1.2, 1.4, 1.6, 1.3.
    """
    rule = "fixed table, not measured"
    if provider is Provider.CPU and "blocked" in usable:
        short = usable.get("attention", FORMS["decomposed"])
        last = 256 if "attention" in usable else 128
        return Choice(forms=(short, usable["blocked"]), last=(last,), reason={"rule": rule})
    return Choice(forms=(FORMS["decomposed"],), reason={"rule": rule})


def time_models(
    models: Mapping[str, Path],
    inputs: Sequence[TensorContract],
    spec: AttentionSpec,
    provider: Provider,
    lengths: Sequence[int],
    on_step: Callable[[str], None],
) -> dict[str, dict[int, float]]:
    """Milliseconds of the fastest call, for each model and length.

    The fastest, not the median: whatever else the machine does can only add to a time.

    Raises:
        EngineError: A model cannot be run in a process of its own.
    """
    sizes = _SIZES | {
        name: value
        for name, value in (
            ("heads", spec.num_heads),
            ("kv_heads", spec.num_kv_heads),
            ("features", spec.head_dim),
        )
        if value is not None
    }
    named = {dim for tensor in inputs for dim in tensor.dims if isinstance(dim, str)}
    times: dict[str, dict[int, float]] = {name: {} for name in models}
    with ExitStack() as stack:
        watches = {
            name: stack.enter_context(Stopwatch(path, str(provider)))
            for name, path in models.items()
        }
        for length in lengths:
            on_step(f"measure at {length} tokens")
            case = {dim: sizes.get(dim, 1) for dim in named} | {"tokens": length}
            best = math.inf
            for turn in range(ROUNDS):
                for name, watch in watches.items():
                    known = times[name].get(length, math.inf)
                    if turn and known > HOPELESS * best:
                        continue
                    times[name][length] = min(known, watch.fastest_ms(case, TURN_SECONDS))
                best = min(by_length[length] for by_length in times.values())
    return times


def measured_choice(
    usable: Mapping[str, Form],
    times: Mapping[str, Mapping[int, float]],
    provider: Provider,
    refused: Mapping[str, str],
) -> Choice:
    """The assignment of forms to lengths with the least product of times.

    Args:
        usable: By name, those in `times`.
        times: Milliseconds by form and length, all at the same lengths.
        provider: Where they were taken.
        refused: Forms that did not take part, with the reason.
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

    names, cuts = min(_assignments(tuple(times), lengths), key=cost)
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
    names: tuple[str, ...], lengths: Sequence[int]
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Every sequence of distinct forms with every way to cut `lengths` among them."""
    allowed = [cut for cut in range(1, len(lengths)) if _between(lengths, cut) <= LONGEST_SWITCH]
    for count in range(1, len(names) + 1):
        for order in permutations(names, count):
            for cuts in combinations(allowed, count - 1):
                yield order, cuts


def _between(lengths: Sequence[int], cut: int) -> int:
    """The last length before a switch: halfway, by ratio, between two that were measured."""
    return math.isqrt(lengths[cut - 1] * lengths[cut])
