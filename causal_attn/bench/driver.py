"""`run_bench`: systems take turns, each in its own process, on cases one after another."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from causal_attn.bench.cases import Case, Mode
from causal_attn.bench.plan import Plan
from causal_attn.bench.report import CaseResult, MemoryResult, Report
from causal_attn.bench.settings import Settings
from causal_attn.bench.systems import BASELINE, FORM_SYSTEMS, OURS, PLAIN
from causal_attn.bench.worker import EXPORTER, LIMIT, SERVE
from causal_attn.errors import CheckError, EngineError, UsageError
from causal_attn.machine.facts import describe_machine
from causal_attn.machine.provider import Provider
from causal_attn.package import open_model, read_package
from causal_attn.runtime.providers import require_provider
from causal_attn.timing.busy import BUSY_SHARE, busy_seconds
from causal_attn.timing.process import Worker, WorkerFailed

__all__ = ["run_bench"]

_TOLERANCE = {"float32": 1e-3, "float16": 2e-2}
"""For telling a system that computes something else; parity is the business of the checks."""

_TRIES = 3
"""Turns taken for one figure at most, while other processes take more than `BUSY_SHARE`."""

_STANDING = Settings()

Progress = Callable[[int, int, str], None]


def run_bench(
    plan: Plan,
    settings: Settings = _STANDING,
    *,
    on_progress: Progress = lambda done, total, words: None,
) -> Report:
    """Measure systems on cases.

    A round gives every system one turn in every case, in an order that moves on by one each
    round; inputs are fresh in every round and the same for all its systems. A turn that other
    processes disturb is taken again, up to three times; the quietest counts.

    Args:
        plan: What to run.
        settings: How.
        on_progress: Called with steps done, steps in all, and the step under way.

    Returns:
        The report; what could not be run is in `Report.skipped`, in words.

    Raises:
        UsageError: `plan` is empty or does not fit the provider or the package, or the package
            does not fit a case.
        CheckError: A system computes something else than torch does.
        CausalAttnError: The export failed.
    """
    provider = require_provider(settings.provider)
    if not plan.cases and not plan.memory:
        raise UsageError("`plan` must have cases, got none.")
    if plan.memory and provider.device != "cpu":
        raise UsageError(
            f"`memory` must be measured on a provider of the host, got {str(provider)!r}: "
            "resident memory says nothing about a device."
        )
    models = {case.model: case for case in (*plan.cases, *plan.memory)}
    if settings.package is not None and len(models) > 1:
        raise UsageError(
            f"`package` must fit all cases, got cases of {len(models)} models: {list(models)}. "
            "Run one at a time."
        )
    count = len(settings.systems)
    turns = (settings.rounds + 1) * (count + 1)
    alone = sum(name in FORM_SYSTEMS for name in settings.systems)
    total = (2 + alone) * len(models) + turns * len(plan.cases) + count * len(plan.memory)
    with _Run(settings, provider, on_progress, total) as run:
        run.write_models(models)
        measured = [run.measure(case) for case in plan.cases]
        results = _held_to_one_limit([result for result in measured if result is not None])
        pids = run.pids()
        # Their memory must not be there when memory is measured.
        run.close_workers()
        peaks = [run.measure_memory(case) for case in plan.memory]
    return Report(
        machine=describe_machine(provider),
        settings={
            "rounds": settings.rounds,
            "turn_seconds": settings.turn_seconds,
            "form": settings.form if settings.package is None else None,
            "systems": list(settings.systems),
        },
        packages=run.packages,
        cases=results,
        memory=peaks,
        pids=pids,
        skipped=run.skipped,
    )


class _Run:
    """The workers and files of one run."""

    def __init__(
        self, settings: Settings, provider: Provider, on_progress: Progress, total: int
    ) -> None:
        self.packages: dict[str, dict[str, Any]] = {}
        self.skipped: dict[str, str] = {}
        self._settings, self._provider = settings, provider
        self._progress, self._done, self._total = on_progress, 0, total
        self._workers: dict[str, Worker] = {}
        self._pids: dict[str, int] = {}
        self._files: dict[tuple[str, str], Path] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="causal_attn-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close_workers()
        self._folder.cleanup()

    def pids(self) -> dict[str, int]:
        return dict(self._pids)

    def close_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def write_models(self, models: Mapping[str, Case]) -> None:
        """Write the files that systems run, in a process that ends before they start."""
        systems, package = self._settings.systems, self._settings.package
        form, cache = self._settings.form, self._settings.cache
        with Worker(SERVE, EXPORTER, self._provider) as exporter:
            for number, (model, case) in enumerate(models.items()):
                folder = Path(self._folder.name)
                self._step(f"export and check: {model}")
                if OURS in systems and package is None:
                    path = folder / f"package-{number}"
                    self.packages[model] = exporter.ask(
                        "package", case=case.to_dict(), path=str(path), form=form, cache=cache
                    )
                    self._files[OURS, model] = path
                elif OURS in systems and package is not None:
                    self.packages[model] = _described(Path(package), self._provider)
                    self._files[OURS, model] = Path(package).absolute()
                for name in filter(FORM_SYSTEMS.__contains__, systems):
                    self._step(f"export and check {name}: {model}")
                    path = folder / f"{name}-{number}"
                    try:
                        exporter.ask(
                            "package", case=case.to_dict(), path=str(path), form=name, cache=cache
                        )
                    except UsageError as error:
                        self.skipped[f"{name}, {model}"] = str(error)
                    else:
                        self._files[name, model] = path
                self._step(f"torch.onnx.export: {model}")
                if PLAIN in systems:
                    path = folder / f"plain-{number}.onnx"
                    try:
                        exporter.ask("plain", case=case.to_dict(), path=str(path))
                    except WorkerFailed as error:
                        self.skipped[f"{PLAIN}, {model}"] = str(error)
                    else:
                        self._files[PLAIN, model] = path

    def measure(self, case: Case) -> CaseResult | None:
        """All rounds of one case; ``None`` if there is nothing to tell."""
        samples = {name: self._prepare(name, case) for name in (*self._settings.systems, LIMIT)}
        ready = [name for name, sample in samples.items() if sample is not None]
        _require_same({name: samples[name] for name in ready if name != LIMIT}, case)
        seconds: dict[str, list[float]] = {name: [] for name in ready if name != LIMIT}
        rates: list[tuple[float, str]] = []
        elsewhere: list[float] = []
        for number in range(self._settings.rounds):
            # Whoever comes first in a round would always follow the same system.
            shift = number % len(ready) if ready else 0
            for name in (*ready[shift:], *ready[:shift]):
                self._step(f"{name}: {case.title}")
                try:
                    answer, share = self._quietest_turn(name, number + 1)
                except EngineError as error:
                    if name == LIMIT or self._worker(name).runs():
                        raise
                    self._lose(name, case, error)
                    ready.remove(name)
                    seconds.pop(name, None)
                    continue
                if share is not None:
                    elsewhere.append(share)
                if name == LIMIT:
                    rates.append((answer["rate"], answer["of"]))
                else:
                    seconds[name].append(answer["seconds"])
            self._done += len(samples) - len(ready)
        for name in ready:
            self._worker(name).ask("release")
        if not seconds or not rates:
            return None
        return CaseResult(
            case=case,
            rounds=seconds,
            limit_rates=[rate for rate, _ in rates],
            limit_of=max(rates)[1],
            elsewhere=sum(elsewhere) / len(elsewhere) if elsewhere else None,
        )

    def _quietest_turn(self, name: str, seed: int) -> tuple[dict[str, Any], float | None]:
        """The answer to a turn, and the share of the cores that other processes had meanwhile.

        Whether a turn is taken again depends on others alone, never on its own figure.
        """
        seconds = self._settings.turn_seconds
        tries: list[tuple[float, dict[str, Any]]] = []
        while True:
            clock = _Clock()
            answer = self._worker(name).ask("turn", seed=seed, seconds=seconds)
            share = clock.share_elsewhere(answer["cpu_seconds"])
            if share is None:
                return answer, None
            tries.append((share, answer))
            if share <= BUSY_SHARE or len(tries) == _TRIES:
                share, answer = min(tries, key=lambda one: one[0])
                return answer, share

    def measure_memory(self, case: Case) -> MemoryResult:
        """Peak memory added by each system, each in a fresh process."""
        added: dict[str, int] = {}
        for name in self._settings.systems:
            self._step(f"memory of {name}: {case.title}")
            if f"{name}, {case.model}" in self.skipped:
                continue
            with Worker(SERVE, name, self._provider) as worker:
                try:
                    worker.ask("prepare", case=case.to_dict(), model=self._file(name, case))
                    added[name] = worker.ask("memory", seed=1, warm_up=16)["added_bytes"]
                except (WorkerFailed, EngineError) as error:
                    self.skipped[f"memory of {name}, {case.title}"] = str(error)
        return MemoryResult(case=case, added_bytes=added)

    def _prepare(self, name: str, case: Case) -> dict[str, Any] | None:
        """A sample of the output once all is ready; ``None``, and a word in `skipped`, if not."""
        self._step(f"prepare {name}: {case.title}")
        if f"{name}, {case.model}" in self.skipped:
            return None
        try:
            worker = self._worker(name)
            worker.ask("prepare", case=case.to_dict(), model=self._file(name, case))
            return {} if name == LIMIT else worker.ask("sample", seed=0)
        except WorkerFailed as error:
            self.skipped[f"{name}, {case.title}"] = str(error)
            return None
        except EngineError as error:
            if self._worker(name).runs():
                raise
            self._lose(name, case, error)
            return None

    def _lose(self, name: str, case: Case, error: EngineError) -> None:
        """A process has ended, such as for want of memory: the next case gets a new one."""
        self._workers.pop(name).close()
        self.skipped[f"{name}, {case.title}"] = str(error)

    def _file(self, name: str, case: Case) -> str | None:
        path = self._files.get((name, case.model))
        return None if path is None else str(path)

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            self._workers[name] = Worker(SERVE, name, self._provider)
            self._pids[name] = self._workers[name].pid
        return self._workers[name]

    def _step(self, words: str) -> None:
        self._progress(self._done, self._total, words)
        self._done += 1


def _held_to_one_limit(results: Sequence[CaseResult]) -> list[CaseResult]:
    """All prefills multiply the same matrices for their limit: the best rate holds for each."""
    best: dict[str, CaseResult] = {}
    for result in results:
        if result.case.mode is Mode.PREFILL:
            known = best.setdefault(result.case.dtype, result)
            best[result.case.dtype] = max(known, result, key=lambda one: one.limit_rate)
    return [
        replace(result, best_rate=found.limit_rate, limit_of=found.limit_of)
        if result.case.mode is Mode.PREFILL and (found := best[result.case.dtype])
        else result
        for result in results
    ]


class _Clock:
    """CPU time of the whole machine since it was made."""

    def __init__(self) -> None:
        self._start, self._busy = time.perf_counter(), busy_seconds()

    def share_elsewhere(self, ours: float) -> float | None:
        """Share of all cores that went to anything but `ours` CPU seconds; ``None``: unknown."""
        busy = busy_seconds()
        if busy is None or self._busy is None:
            return None
        passed = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        return max(0.0, busy - self._busy - ours) / passed


def _require_same(samples: Mapping[str, Any], case: Case) -> None:
    """A figure is worth something only if the same was computed.

    Raises:
        CheckError: It was not.
    """
    reference = BASELINE if BASELINE in samples else next(iter(samples), "")
    for name, sample in samples.items():
        theirs, ours = samples[reference], sample
        tolerance = _TOLERANCE[case.dtype]
        if theirs["shape"] != ours["shape"] or not np.allclose(
            theirs["sample"], ours["sample"], rtol=tolerance, atol=tolerance
        ):
            raise CheckError(
                f"{name} must compute what {reference} does for {case.title}, got an output "
                f"{ours['shape']} that differs from {theirs['shape']} or in its values."
            )


def _described(package: Path, provider: Provider) -> dict[str, Any]:
    variant = (
        read_package(package).select(provider, None, None)
        if package.is_dir()
        else open_model(package)
    )
    contract = variant.contract
    return {"form": contract.form, "opset": contract.opset, "choice": dict(contract.choice)}
