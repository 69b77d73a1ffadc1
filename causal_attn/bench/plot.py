"""A report as a picture: time against tokens with the machine's limit, and ratios to torch."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from causal_attn.bench.cases import Mode
from causal_attn.bench.report import CaseResult, Report
from causal_attn.bench.systems import BASELINE, OURS
from causal_attn.bench.table import in_time_units
from causal_attn.errors import UsageError
from causal_attn.picture import BLUE, INK, make_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_bench"]

# Okabe and Ito's colours; the markers say the same without them.
_STYLES = {
    OURS: (BLUE, "o"),
    BASELINE: (INK, "s"),
    "torch.compile": ("#009e73", "^"),
    "torch.onnx": ("#d55e00", "D"),
    "decomposed": ("#cc79a7", "v"),
    "attention": ("#e69f00", "^"),
    "gqa": ("#009e73", "D"),
    "blocked": ("#56b4e9", "P"),
}
_GREY = "#8a8a8a"
_TITLE: dict[str, Any] = {"fontsize": 10, "color": INK, "loc": "left"}


def draw_bench(report: Report, path: str | PathLike[str]) -> None:
    """Draw one column for each family of cases of a report.

    Above: seconds of a call against tokens, both logarithmic, medians with the quartiles shaded,
    and the least time that the machine's own rate allows, dashed. Below: how many times as fast
    as torch.

    Args:
        report: What `causal_attn.bench.run_bench` returned; it must have cases.
        path: The PNG file to write; an existing one is replaced.

    Raises:
        UsageError: The report has no cases, or the place cannot be written.
        MissingDependencyError: matplotlib is not installed.
    """
    families = report.families()
    if not families:
        raise UsageError("`report` must have cases to draw, got none.")
    widths = [max(1.0, min(2.0, len(results) / 4)) for results in families.values()]
    figure = make_figure(max(6.5, 1 + 3.6 * sum(widths)), 7)
    grid: Any = figure.subplots(
        2,
        len(families),
        squeeze=False,
        sharex="col",
        gridspec_kw={"width_ratios": widths, "height_ratios": [3, 2]},
    )
    for column, (family, results) in enumerate(families.items()):
        _draw_times(grid[0, column], family, results)
        _draw_ratios(grid[1, column], results)
        grid[1, column].set_xlabel(
            "tokens in the cache" if results[0].case.mode is Mode.DECODE else "tokens", color=INK
        )
    grid[0, 0].set_ylabel("time of a call", color=INK)
    grid[1, 0].set_ylabel("times as fast as torch", color=INK)
    found: dict[str, Any] = {}
    for axes in grid[0]:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend(
        handles=list(found.values()),
        labels=list(found),
        loc="outside lower center",
        ncols=len(found) if len(families) > 1 else 3,
        frameon=False,
        labelcolor=INK,
    )
    machine = report.machine
    figure.suptitle(
        f"{machine['processor']}, {machine['cores']} cores, {machine['provider']}: "
        f"ONNX Runtime {machine['onnxruntime']}, torch {machine['torch']}",
        fontsize=10,
        color=INK,
    )
    save(figure, path)


def _draw_times(axes: Axes, family: str, results: list[CaseResult]) -> None:
    lengths = [result.case.tokens for result in results]
    for system, (colour, marker) in _styles(results).items():
        ran = [result for result in results if system in result.rounds]
        spreads = [result.seconds(system) for result in ran]
        at = [result.case.tokens for result in ran]
        axes.fill_between(
            at, [s.q1 for s in spreads], [s.q3 for s in spreads], color=colour, alpha=0.15, lw=0
        )
        axes.plot(
            at,
            [s.median for s in spreads],
            color=colour,
            marker=marker,
            markersize=5,
            label=system,
            lw=2.2 if system == OURS else 1.4,
            zorder=3 if system == OURS else 2,
        )
    decoding = results[0].case.mode is Mode.DECODE
    axes.plot(
        lengths,
        [result.limit for result in results],
        color=_GREY,
        lw=1.4,
        ls=(0, (1, 2)) if decoding else (0, (5, 3)),
        label="limit: memory reads" if decoding else "limit: matrix products",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(family.replace(", ", "\n", 1).replace(", float", "\nfloat"), **_TITLE)
    axes.yaxis.set_major_formatter(lambda seconds, _: in_time_units(seconds))
    _label_between(axes)
    _finish(axes, lengths)


def _draw_ratios(axes: Axes, results: list[CaseResult]) -> None:
    lengths = [result.case.tokens for result in results]
    axes.axhline(1, color=_STYLES[BASELINE][0], lw=1.4, zorder=1)
    shown = [1.0]
    for system, (colour, marker) in _styles(results).items():
        if system == BASELINE:
            continue
        pairs = [
            (result.case.tokens, ratio)
            for result in results
            if system in result.rounds and (ratio := result.ratio(system)) is not None
        ]
        at = [tokens for tokens, _ in pairs]
        axes.fill_between(
            at, [r.q1 for _, r in pairs], [r.q3 for _, r in pairs], color=colour, alpha=0.15, lw=0
        )
        axes.plot(
            at,
            [r.median for _, r in pairs],
            color=colour,
            marker=marker,
            markersize=5,
            lw=2.2 if system == OURS else 1.4,
        )
        shown += [r.median for _, r in pairs]
    # Twice as fast and half as fast lie equally far from 1.
    axes.set_yscale("log", base=2)
    low, high = min(shown), max(shown)
    axes.set_ylim(min(low / 1.3, 0.5), max(high * 1.3, 2))
    axes.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
    _finish(axes, lengths)


def _styles(results: list[CaseResult]) -> dict[str, tuple[str, str]]:
    systems = dict.fromkeys(name for result in results for name in result.rounds)
    return {name: _STYLES[name] for name in systems}


def _finish(axes: Axes, lengths: list[int]) -> None:
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    if len(lengths) < 3:
        axes.set_xlim(lengths[0] / 1.5, lengths[-1] * 1.5)
    axes.tick_params(labelsize=9, colors=INK)
    axes.grid(color="#e4e4e4", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GREY)


def _label_between(axes: Axes) -> None:
    """Label 2 and 5 too where the times span so little that powers of ten say nothing."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if high < low * 100:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
