"""How a benchmark is run: which systems, on what, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from causal_attn.bench.systems import SYSTEMS, require_system
from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything about a run but its cases.

    Attributes:
        systems: Out of `SYSTEMS`, or forms, exported on the spot and run alone. Ratios need
            ``torch``.
        provider: What all of them run on, by name; ``cuda`` puts torch on the GPU.
        package: A package of ours; default: exported on the spot, one a family of cases.
        form: Of the package exported on the spot.
        cache: Of a package exported on the spot for a decode step: ``static``, bound and written
            in place as torch's is, or ``dynamic``, which every step copies.
        rounds: Turns of each system in each case.
        turn_seconds: Length of a turn after its warm-up; one call at least, however long.

    Raises:
        UsageError: `systems` are unknown, none or not distinct, or a number cannot be.
    """

    systems: tuple[str, ...] = tuple(SYSTEMS)
    provider: str | Provider = Provider.CPU
    package: str | Path | None = None
    form: str = "auto"
    cache: str = "static"
    rounds: int = 7
    turn_seconds: float = 0.2

    def __post_init__(self) -> None:
        for name in self.systems:
            require_system(name)
        if not self.systems or len(set(self.systems)) != len(self.systems):
            raise UsageError(
                f"`systems` must be distinct and not empty, got {list(self.systems)}."
            )
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise UsageError(f"`rounds` must be an integer >= 1, got {self.rounds!r}.")
        if not self.turn_seconds > 0:
            raise UsageError(f"`turn_seconds` must be > 0, got {self.turn_seconds!r}.")
