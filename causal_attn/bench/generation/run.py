"""`run_generation`: systems take turns on the same prompts, each in its own process."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from causal_attn.bench.generation.systems import GENERATORS, OURS, READS, SERVE
from causal_attn.errors import UsageError
from causal_attn.machine.facts import describe_machine
from causal_attn.machine.provider import Provider
from causal_attn.package import read_package
from causal_attn.package.contract import Contract
from causal_attn.timing.process import Worker

__all__ = ["EngineFigures", "GenerationReport", "SystemFigures", "run_generation"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemFigures:
    """One system: each list has one figure a round.

    Attributes:
        prefill: Seconds from the prompt to the first token.
        decode: Seconds of a token after it.
        read_bytes: Weights, as its files or its parameters have them.
        same: Tokens, from the first on, in which its greedy answer is that of the first system.
    """

    prefill: list[float]
    decode: list[float]
    read_bytes: int
    same: int

    @property
    def tokens_a_second(self) -> float:
        """Median of the rounds."""
        return 1 / statistics.median(self.decode)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFigures:
    """Many requests of mixed lengths: one after another, and together.

    Attributes:
        requests: How many.
        alone: Tokens a second, one after another, one figure a round.
        together: Tokens a second in the engine, one figure a round.
        first: Seconds to the first token, of every request and round.
        gaps: Seconds between two tokens of a request.
    """

    requests: int
    alone: list[float]
    together: list[float]
    first: list[float]
    gaps: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationReport:
    """Figures of one run, and what they were measured on.

    Attributes:
        machine: See `causal_attn.machine.facts`.
        prompt: Tokens of the prompt.
        new: Tokens that were generated.
        systems: By name.
        engine: ``None`` if it was not asked for.
        read_rate: Bytes a second that the machine reads from memory.
        cache_bytes: Of the cache in the middle of the answer, which a token reads too.
        load: Processes that wanted a core when it began, on average of a minute; ``None`` where
            the system does not say. More than a few tenths, and the figures are of a busy machine.
    """

    machine: Mapping[str, Any]
    prompt: int
    new: int
    systems: Mapping[str, SystemFigures]
    engine: EngineFigures | None
    read_rate: float
    cache_bytes: int
    load: float | None

    def share_of_limit(self, name: str) -> float:
        """What a token must read, over what the machine could read in its time."""
        figures = self.systems[name]
        wanted = figures.read_bytes + self.cache_bytes
        return wanted / statistics.median(figures.decode) / self.read_rate

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {
            "share_of_limit": {name: self.share_of_limit(name) for name in self.systems}
        }


# Where each system's model lies, and the work: all of it is the caller's choice.
def run_generation(
    sources: Mapping[str, str | Path],
    *,
    provider: str = "cpu",
    prompt: int = 128,
    new: int = 128,
    requests: int = 0,
    rounds: int = 5,
    on_progress: Progress = lambda done, total, words: None,
) -> GenerationReport:
    """Measure greedy decoding of one sequence, and of many in the engine.

    Args:
        sources: System out of `GENERATORS` to its model: a package for ``causal_attn``; a package
            or a folder of its own for ``onnxruntime-genai``; a folder as the library saves it for
            ``transformers``. ``causal_attn`` must be among them.
        provider: What all of them run on.
        prompt: Tokens of the prompt, >= 1, drawn at random.
        new: Tokens of the answer, >= 2.
        requests: Of mixed lengths, for the engine; 0 leaves it out.
        rounds: Turns of each system, >= 1.
        on_progress: Called with steps done, steps in all, and the step under way.

    Raises:
        UsageError: An argument is wrong.
        CausalAttnError: A system could not run; the message is its own.
    """
    if OURS not in sources or not set(sources) <= set(GENERATORS):
        raise UsageError(
            f"`sources` must be out of {list(GENERATORS)}, {OURS} among them, got {list(sources)}."
        )
    counts = {"prompt": (prompt, 1), "new": (new, 2), "requests": (requests, 0)}
    for name, (value, least) in (counts | {"rounds": (rounds, 1)}).items():
        if type(value) is not int or value < least:
            raise UsageError(f"`{name}` must be an integer >= {least}, got {value!r}.")
    wanted = Provider.parse(provider)
    contract = read_package(Path(sources[OURS])).select(wanted, None, None).contract
    if contract.cache is None or all(tensor.name != "logits" for tensor in contract.outputs):
        raise UsageError(
            f"`sources` must have a package of a language model for {OURS}, got {sources[OURS]}, "
            "which has no cache or no logits."
        )
    run = _Run(wanted, contract, prompt, new, requests)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    turns = len(sources) + (2 if requests else 0)
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(SERVE, name, wanted)) for name in (*sources, READS)
        }
        sizes = {
            name: workers[name].ask("prepare", source=str(path))["bytes"]
            for name, path in sources.items()
        }
        # The round before the first wakes everything and counts for nothing.
        for turn in range(rounds + 1):
            kept = run if turn else _Run(wanted, contract, prompt, new, requests)
            for done, words in enumerate(kept.turns(workers, list(sources), turn)):
                on_progress(turn * turns + done, (rounds + 1) * turns, words)
    return GenerationReport(
        machine=describe_machine(wanted),
        prompt=prompt,
        new=new,
        systems={
            name: SystemFigures(
                prefill=[one["prefill"] for one in given],
                decode=[one["decode"] for one in given],
                read_bytes=sizes[name],
                same=min(
                    _same(one["ids"], ours["ids"])
                    for one, ours in zip(given, run.answers[OURS], strict=True)
                ),
            )
            for name, given in ((name, run.answers[name]) for name in sources)
        },
        engine=run.engine() if requests else None,
        read_rate=max(run.rates),
        cache_bytes=_cache_bytes(contract, prompt + new // 2),
        load=load,
    )


class _Run:
    """What the systems answered."""

    def __init__(
        self, provider: Provider, contract: Contract, prompt: int, new: int, requests: int
    ) -> None:
        logits = next(tensor for tensor in contract.outputs if tensor.name == "logits")
        self._vocabulary = int(logits.dims[-1])
        self._prompt, self._new, self._requests = prompt, new, requests
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.alone: list[dict[str, Any]] = []
        self.together: list[dict[str, Any]] = []
        self.rates: list[float] = []

    def turns(self, workers: Mapping[str, Worker], names: list[str], turn: int) -> Iterator[str]:
        """One turn of each; yields what comes next. The prompts are those of the turn."""
        random = np.random.default_rng(turn)
        ids = _ids(random, self._vocabulary, self._prompt)
        # Who is first moves on by one: what one leaves in the caches is not always the same.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            yield f"round {turn}: {name}"
            answer = workers[name].ask("turn", prompt=ids, new=self._new)
            self.answers.setdefault(name, []).append(answer)
        self.rates.append(workers[READS].ask("turn", threads=os.cpu_count() or 1)["rate"])
        if not self._requests:
            return
        lengths = random.integers(1, 2 * self._prompt, self._requests)
        asked = {
            "prompts": [_ids(random, self._vocabulary, int(length)) for length in lengths],
            "new": [int(n) for n in random.integers(2, 2 * self._new, self._requests)],
        }
        for results, at_once in ((self.alone, 1), (self.together, min(self._requests, 16))):
            yield f"round {turn}: {self._requests} requests, {at_once} at once"
            results.append(workers[OURS].ask("many", **asked, at_once=at_once))

    def engine(self) -> EngineFigures:
        """Of the rounds so far."""
        return EngineFigures(
            requests=self._requests,
            alone=[one["tokens"] / one["seconds"] for one in self.alone],
            together=[one["tokens"] / one["seconds"] for one in self.together],
            first=[seconds for one in self.together for seconds in one["first"]],
            gaps=[seconds for one in self.together for seconds in one["gaps"]],
        )


def _ids(random: np.random.Generator, vocabulary: int, count: int) -> list[int]:
    return [int(token) for token in random.integers(0, vocabulary, count)]


def _same(ids: list[int], wanted: list[int]) -> int:
    pairs = zip(ids, wanted, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(wanted))


def _cache_bytes(contract: Contract, tokens: int) -> int:
    """Of one sequence with so many tokens."""
    assert contract.cache is not None  # a generator refuses a model without
    total = 0
    tensors = {tensor.name: tensor for tensor in contract.inputs}
    for entry in contract.cache.entries:
        tensor = tensors[entry.input]
        sizes = [tokens if axis == entry.axis else dim for axis, dim in enumerate(tensor.dims)]
        fixed = [size for size in sizes if isinstance(size, int)]
        total += math.prod(fixed) * np.dtype(tensor.dtype).itemsize
    return total
