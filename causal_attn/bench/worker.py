"""The roles of the benchmark's workers: what each answers in its own process.

::

    {"do": "prepare", "case": {…}, "model": "…"}     -> {}
    {"do": "sample", "seed": 0}                      -> {"sample": […]}
    {"do": "turn", "seed": 1, "seconds": 0.2}        -> {"seconds": 0.0012, "cpu_seconds": 0.5}
    {"do": "memory", "seed": 1}                      -> {"added_bytes": 123}
    {"do": "release"}                                -> {}

`causal_attn.timing.worker` reads the requests and writes the answers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from causal_attn.bench.cases import Case
from causal_attn.bench.exporter import export_package, export_plain
from causal_attn.bench.limits import LimitProbe
from causal_attn.bench.systems import System, require_system
from causal_attn.machine.provider import Provider
from causal_attn.timing.memory import added_peak_bytes, resident_bytes
from causal_attn.timing.turn import measure_turn

__all__ = ["EXPORTER", "LIMIT", "SERVE", "serve"]

_MOST_KEPT_BYTES = 2 * 2**30

LIMIT = "limit"
"""Name of the process that measures what the machine could do."""
EXPORTER = "exporter"
"""Name of the process that writes the models."""

SERVE = f"{__name__}:serve"
"""The role of every worker of the benchmark."""


def serve(name: str, provider: Provider) -> Any:
    """What answers for `LIMIT`, `EXPORTER` or else the system `name`, on `provider`."""
    return _SERVED.get(name, _SystemServer)(name, provider)


class _SystemServer:
    def __init__(self, name: str, provider: Provider) -> None:
        self._system: System = require_system(name)(provider)
        self._grouped = provider.memory == "cuda"
        self._released = True

    def do_prepare(self, case: Mapping[str, Any], model: str | None) -> dict[str, Any]:
        self._case, self._model = Case.from_dict(case), None if model is None else Path(model)
        self._system.prepare(self._case, self._model)
        self._released = False
        return {}

    def do_sample(self, seed: int) -> dict[str, Any]:
        """The last row of the first and of the last head: enough to tell a wrong result."""
        self._load(seed)
        output = self._system.output()
        self._make_room()
        return {
            "shape": list(output.shape),
            "sample": [*map(float, output[0, 0, -1]), *map(float, output[-1, -1, -1])],
        }

    def do_turn(self, seed: int, seconds: float) -> dict[str, Any]:
        start = time.process_time()
        self._load(seed)
        samples = measure_turn(
            self._system.call, self._system.wait, seconds, grouped=self._grouped
        )
        self._make_room()
        return {"seconds": statistics.median(samples), "cpu_seconds": time.process_time() - start}

    def _load(self, seed: int) -> None:
        if self._released:
            self._system.prepare(self._case, self._model)
            self._released = False
        self._system.load(self._case.arrays(seed))

    def _make_room(self) -> None:
        # What an arena keeps of a long case would stay while the others run: together they can
        # need more than the machine has, and the kernel ends one.
        if resident_bytes() > _MOST_KEPT_BYTES:
            self._system.release()
            self._released = True

    def do_memory(self, seed: int, warm_up: int) -> dict[str, Any]:
        """Peak of one call, after one that loads libraries and code.

        The call before has `warm_up` tokens where its memory would be kept, else the same shape:
        torch.compile compiles anew for another one.
        """
        tokens = warm_up if self._system.keeps_memory else self._case.tokens
        warm = Case.from_dict({**self._case.to_dict(), "tokens": tokens})
        self._system.load(warm.arrays(seed))
        self._system.call()
        self._system.load(self._case.arrays(seed))
        added = added_peak_bytes(self._system.call)
        return {"added_bytes": max(0, added - self._case.output_bytes)}

    def do_release(self) -> dict[str, Any]:
        if not self._released:
            self._system.release()
            self._released = True
        return {}


class _LimitServer:
    def __init__(self, name: str, provider: Provider) -> None:
        self._provider = provider

    def do_prepare(self, case: Mapping[str, Any], model: str | None) -> dict[str, Any]:
        self._probe: LimitProbe | None = LimitProbe(self._provider, Case.from_dict(case))
        return {}

    def do_turn(self, seed: int, seconds: float) -> dict[str, Any]:
        if self._probe is None:
            raise RuntimeError("turn before prepare")
        start = time.process_time()
        rate, of = self._probe.measure(seconds)
        return {"rate": rate, "of": of, "cpu_seconds": time.process_time() - start}

    def do_release(self) -> dict[str, Any]:
        self._probe = None
        return {}


class _ExportServer:
    def __init__(self, name: str, provider: Provider) -> None:
        self._provider = provider

    def do_package(
        self, case: Mapping[str, Any], path: str, form: str, cache: str
    ) -> dict[str, Any]:
        return export_package(
            Case.from_dict(case), Path(path), form=form, cache=cache, provider=str(self._provider)
        )

    def do_plain(self, case: Mapping[str, Any], path: str) -> dict[str, Any]:
        return export_plain(Case.from_dict(case), Path(path))


_SERVED: Mapping[str, Any] = {LIMIT: _LimitServer, EXPORTER: _ExportServer}
