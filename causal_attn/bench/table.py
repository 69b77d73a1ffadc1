"""A report as rich tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from causal_attn.bench.cases import Mode
from causal_attn.bench.report import CaseResult, Report
from causal_attn.bench.systems import BASELINE, OURS
from causal_attn.timing.busy import BUSY_SHARE

__all__ = ["bench_tables", "in_time_units"]


_MOST_WIDE = 4
"""Systems beside each other in 80 columns with their share of the limit."""


def bench_tables(report: Report) -> Iterator[Table | Text]:
    """One table a family of cases, one for memory, then what was skipped and what to doubt."""
    means = report.geometric_means()
    for family, results in report.families().items():
        yield _family_table(family, results, means[family])
    if reached := sorted({result.limit_of for result in report.cases if result.limit_of}):
        yield Text(f"Limits are the best rates that this machine showed: {'; '.join(reached)}.")
    if report.memory:
        yield _memory_table(report)
    behind = [(*found, result) for result in report.cases if (found := result.behind_best_form())]
    if behind:
        form, times, result = max(behind, key=lambda one: one[1])
        yield Text(
            f"At worst {OURS} takes {times:.2f} x the time of the best form alone: {form} for "
            f"{result.case.title}."
        )
    for what, why in report.skipped.items():
        yield Text(f"not measured: {what}: {why}", style="yellow")
    busy = [result for result in report.cases if (result.elsewhere or 0) > BUSY_SHARE]
    if busy:
        worst = max(result.elsewhere or 0 for result in busy)
        yield Text(
            f"Other processes used up to {worst:.0%} of the cores while {len(busy)} of "
            f"{len(report.cases)} cases ran: run again on a quiet machine.",
            style="bold yellow",
        )


def in_time_units(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}" if seconds < 100 else f"{seconds:.0f} s"
    raise AssertionError  # the last unit takes everything


def _family_table(family: str, results: list[CaseResult], means: dict[str, float]) -> Table:
    decoding = results[0].case.mode is Mode.DECODE
    systems = list(dict.fromkeys(name for result in results for name in result.rounds))
    narrow = len(systems) > _MOST_WIDE
    share = "" if narrow else ", share of the limit"
    table = Table(
        title=family,
        title_justify="left",
        show_lines=True,
        padding=(0, 0 if narrow else 1),
        caption=(
            f"first line: median time{share}; second and third: times as fast as torch and its "
            "quartiles, for torch itself the quartiles of its time"
        ),
        caption_justify="left",
    )
    table.add_column("cached" if decoding else "tokens", justify="right", no_wrap=True)
    table.add_column(f"limit\n{'GB/s' if decoding else 'GFLOP/s'}", justify="right", no_wrap=True)
    for system in systems:
        heading = system.replace(".", ".\n").replace("_", "_\n")
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            str(result.case.tokens),
            f"{in_time_units(result.limit)}\n{result.limit_rate / 1e9:.3g}",
            *(_cell(result, system, narrow=narrow) for system in systems),
        )
    if means:
        table.add_row(
            "geom.\nmean", "", *(_number(means[s]) if s in means else "" for s in systems)
        )
    return table


def _cell(result: CaseResult, system: str, *, narrow: bool) -> str:
    if system not in result.rounds:
        return "-"
    seconds = result.seconds(system)
    share = "" if narrow else f" {result.limit_share(system):4.0%}"
    lines = [f"{in_time_units(seconds.median)}{share}"]
    ratio = result.ratio(system)
    if ratio is None or system == BASELINE:
        lines += [f"{in_time_units(seconds.q1)}", f"{in_time_units(seconds.q3)}"]
    else:
        colour = "green" if ratio.median >= 1 else "red" if ratio.median < 0.9 else "yellow"
        lines += [
            f"[{colour}]{_number(ratio.median)}[/]",
            f"{_number(ratio.q1)}-{_number(ratio.q3)}",
        ]
    return "\n".join(lines)


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"


def _memory_table(report: Report) -> Table:
    table = Table(title="memory that one call adds at its peak", title_justify="left")
    table.add_column("case")
    systems = list(dict.fromkeys(name for result in report.memory for name in result.added_bytes))
    for system in systems:
        table.add_column(system, justify="right", no_wrap=True)
    for result in report.memory:
        table.add_row(
            result.case.title,
            *(
                f"{result.added_bytes[s] / 1e6:.0f} MB" if s in result.added_bytes else "-"
                for s in systems
            ),
        )
    return table
