"""What a benchmark found, as values: medians, spread, ratios, and the limit they are held to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from causal_attn.bench.cases import Case
from causal_attn.bench.limits import LIMIT_UNITS, limit_seconds
from causal_attn.bench.systems import BASELINE, FORM_SYSTEMS, OURS

__all__ = ["SCHEMA", "CaseResult", "MemoryResult", "Report", "Spread"]

SCHEMA = "causal_attn.bench/1"


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        q1, median, q3 = np.percentile(values, (25, 50, 75))
        return cls(median=float(median), q1=float(q1), q3=float(q3))


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """One case: for every system the seconds of a call, one figure a round.

    Attributes:
        case: What was run.
        rounds: By system, the median seconds of a call within each round; all of one length.
        limit_rates: The best rate that the machine showed within each round, in the unit of the
            mode's limit.
        limit_of: What reached the best of them, such as ``torch, 1024 rows``.
        best_rate: The best rate of the same work in the whole run; default the best of this case.
        elsewhere: Mean share of all cores that other processes had during the turns; ``None``:
            unknown.
    """

    case: Case
    rounds: Mapping[str, Sequence[float]]
    limit_rates: Sequence[float]
    limit_of: str = ""
    best_rate: float | None = None
    elsewhere: float | None = None

    def seconds(self, system: str) -> Spread:
        """Over the rounds."""
        return Spread.of(self.rounds[system])

    def ratio(self, system: str) -> Spread | None:
        """How many times as fast as torch, round by round; ``None`` if torch was not run.

        Seconds are paired within a round before the median is taken: whatever slows the machine
        for a while slows both.
        """
        if BASELINE not in self.rounds:
            return None
        pairs = zip(self.rounds[BASELINE], self.rounds[system], strict=True)
        return Spread.of([theirs / ours for theirs, ours in pairs])

    def behind_best_form(self) -> tuple[str, float] | None:
        """The fastest form that was run alone, and how many times as long `OURS` took."""
        forms = [name for name in self.rounds if name in FORM_SYSTEMS]
        if not forms or OURS not in self.rounds:
            return None
        best = min(forms, key=lambda name: self.seconds(name).median)
        pairs = zip(self.rounds[OURS], self.rounds[best], strict=True)
        return best, Spread.of([ours / theirs for ours, theirs in pairs]).median

    @property
    def limit_rate(self) -> float:
        """The best that was seen: the machine can do that much."""
        return max(self.limit_rates) if self.best_rate is None else self.best_rate

    @property
    def limit(self) -> float:
        """The least seconds of a call at the machine's own rate."""
        return limit_seconds(self.case, self.limit_rate)

    def limit_share(self, system: str) -> float:
        """Share of the limit that a system reaches: 1 is as fast as the machine can be."""
        return self.limit / self.seconds(system).median

    def to_dict(self, pids: Mapping[str, int]) -> dict[str, Any]:
        """JSON values."""
        systems = {}
        for system, rounds in self.rounds.items():
            ratio = self.ratio(system)
            systems[system] = {
                "pid": pids[system],
                "rounds": list(rounds),
                "seconds": asdict(self.seconds(system)),
                "ratio": None if ratio is None else asdict(ratio),
                "limit_share": self.limit_share(system),
            }
        return {
            **self.case.to_dict(),
            "limit": {
                "rounds": list(self.limit_rates),
                "rate": self.limit_rate,
                "of": self.limit_of,
                "unit": LIMIT_UNITS[self.case.mode],
                "seconds": self.limit,
            },
            "systems": systems,
            "behind_best_form": self.behind_best_form(),
            "elsewhere": self.elsewhere,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryResult:
    """Peak resident memory that one call adds to the inputs and the output, by system."""

    case: Case
    added_bytes: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**self.case.to_dict(), "added_bytes": dict(self.added_bytes)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A whole run.

    Attributes:
        machine: Processor, cores, provider and versions.
        settings: Rounds, seconds of a turn, form asked for.
        packages: By `Case.model`: form, opset and choice of the package that was run.
        cases: In the order they were run.
        memory: Empty unless it was asked for.
        pids: By system, and ``limit``: the process that ran it.
        skipped: By system and case: why there is no figure.
    """

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    packages: Mapping[str, Mapping[str, Any]]
    cases: Sequence[CaseResult]
    pids: Mapping[str, int]
    memory: Sequence[MemoryResult] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    def families(self) -> dict[str, list[CaseResult]]:
        """Cases that differ only in tokens, by `Case.family`."""
        found: dict[str, list[CaseResult]] = {}
        for result in self.cases:
            found.setdefault(result.case.family, []).append(result)
        return found

    def geometric_means(self) -> dict[str, dict[str, float]]:
        """By family and system: the geometric mean of the ratios at all lengths that it ran."""
        means: dict[str, dict[str, float]] = {}
        for title, results in self.families().items():
            ratios: dict[str, list[float]] = {}
            for result in results:
                for system in result.rounds:
                    if (ratio := result.ratio(system)) is not None:
                        ratios.setdefault(system, []).append(ratio.median)
            means[title] = {
                system: math.exp(sum(map(math.log, values)) / len(values))
                for system, values in ratios.items()
            }
        return means

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "packages": {title: dict(package) for title, package in self.packages.items()},
            "cases": [result.to_dict(self.pids) for result in self.cases],
            "geometric_means": self.geometric_means(),
            "memory": [result.to_dict() for result in self.memory],
            "pids": dict(self.pids),
            "skipped": dict(self.skipped),
        }
