"""A report of generation as rich tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from causal_attn.bench.generation.run import EngineFigures, GenerationReport
from causal_attn.bench.generation.systems import OURS
from causal_attn.bench.table import in_time_units

__all__ = ["generation_tables"]

_BUSY_LOAD = 0.5


def generation_tables(report: GenerationReport) -> Iterator[Table | Text]:
    """One table of systems, one of the engine, and what to doubt."""
    table = Table(title=f"greedy, prompt {report.prompt}, {report.new} new tokens")
    for heading in ("", "prefill", "x", "tokens a second", "x", "of limit", "same"):
        table.add_column(heading, justify="right" if heading else "left")
    ours = report.systems[OURS]
    for name, figures in report.systems.items():
        table.add_row(
            name,
            _spread(*map(in_time_units, _middle_and_ends(figures.prefill))),
            _times(figures.prefill, ours.prefill),
            _spread(*(f"{1 / one:.1f}" for one in _middle_and_ends(figures.decode))),
            _times(figures.decode, ours.decode),
            f"{report.share_of_limit(name):.0%}",
            f"{figures.same}/{report.new}",
        )
    yield table
    if report.engine is not None:
        yield _engine_table(report.engine)
    yield Text(f"limit: weights and cache once a token, at {report.read_rate / 1e9:.1f} GB/s read")
    if (report.load or 0) > _BUSY_LOAD:
        yield Text(
            f"The load was {report.load:.1f} when this began: run again on a quiet machine.",
            style="bold yellow",
        )


def _engine_table(figures: EngineFigures) -> Table:
    alone, together = statistics.median(figures.alone), statistics.median(figures.together)
    table = Table(title=f"{figures.requests} requests of mixed lengths")
    for heading in ("", "tokens a second", "first token p50, p99", "between tokens p50, p99"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("one at a time", f"{alone:.1f}", "", "")
    table.add_row(
        f"engine, {together / alone:.1f} x",
        f"{together:.1f}",
        _percentiles(figures.first),
        _percentiles(figures.gaps),
    )
    return table


def _percentiles(seconds: Sequence[float]) -> str:
    return ", ".join(in_time_units(float(one)) for one in np.percentile(seconds, (50, 99)))


def _times(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """How many times as long it takes as ours does."""
    return "" if theirs is ours else f"{statistics.median(theirs) / statistics.median(ours):.2f}"


def _middle_and_ends(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def _spread(middle: str, low: str, high: str) -> str:
    return f"{middle}\n{low} to {high}"
