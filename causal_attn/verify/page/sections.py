"""What the sections of the page show, as data: the template says how."""

from __future__ import annotations

import base64
import io
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.picture import draw_visibility
from causal_attn.verify.influence import Leak
from causal_attn.verify.page.headline import Headline, headline
from causal_attn.verify.page.text import visible
from causal_attn.verify.report import VariantReport

__all__ = ["RESULTS", "Part", "part"]

MOST_PICTURES = 12
MOST_STEPS = 12
"""Of a leaking path, before its middle is folded."""
ENDS = 4
"""Steps of a folded path that stay on either side."""

RESULTS = {True: ("good", "passed"), False: ("bad", "failed"), None: ("unsure", "undecided")}
"""A check's result to its tone and word."""


class Picture(NamedTuple):
    """Visibility of the outputs in `names`, which share a matrix; `source` is a data URL."""

    source: str
    alt: str
    width: int
    height: int
    names: list[str]


class Pictures(NamedTuple):
    """Those drawn, leaks first, and the names of the outputs that are left out."""

    drawn: list[Picture]
    left: list[str]


class Step(NamedTuple):
    """A node of a leaking path and the tensor it leads to; ``None``: `node` is all there is."""

    node: str
    tensor: str | None


class Stretch(NamedTuple):
    """Steps of a leaking path in a row, counted from `start`."""

    start: int
    steps: list[Step]
    folded: bool = False
    crossing: bool = False


class ErrorTable(NamedTuple):
    """The errors of one check of parity: an output, and its figures as they are printed."""

    check: str
    where: str
    rows: list[tuple[str, list[str]]]


class PlacementRow(NamedTuple):
    """What ran on one provider."""

    provider: str
    elsewhere: bool
    nodes: str
    operators: str


class Part(NamedTuple):
    """One variant, as the template wants it."""

    anchor: str
    variant: VariantReport
    headline: Headline
    pictures: Pictures | None
    path: list[Stretch]
    parity: list[ErrorTable]
    placement: list[PlacementRow]


def part(variant: VariantReport, anchor: str) -> Part:
    """What the page shows about `variant`; `anchor` is its place in the page.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    return Part(
        anchor=anchor,
        variant=variant,
        headline=headline(variant),
        pictures=_pictures(variant.visibility) if variant.visibility else None,
        path=_path(variant.leak) if variant.leak is not None else [],
        parity=_parity(variant.certificate.checks),
        placement=_placement(variant.placement, variant.provider),
    )


def _pictures(visibility: Mapping[str, NDArray[np.bool_]]) -> Pictures:
    # Caches of one decoder mostly share a matrix: one picture, many names.
    same: dict[tuple[tuple[int, ...], bytes], list[str]] = defaultdict(list)
    for name, matrix in visibility.items():
        same[matrix.shape, matrix.tobytes()].append(name)
    groups = [(visibility[names[0]], names) for names in same.values()]
    drawable = [group for group in groups if group[0].ndim == 2 and group[0].size]
    drawable.sort(key=lambda group: not _leaks(group[0]).any())
    drawn = drawable[:MOST_PICTURES]
    left = [
        name for group in groups if not any(group is one for one in drawn) for name in group[1]
    ]
    return Pictures([_picture(matrix, names) for matrix, names in drawn], left)


def _leaks(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What lies right of the diagonal that ends in the corner: rows are the last positions."""
    queries, inputs = matrix.shape
    return np.triu(matrix, k=1 + max(inputs - queries, 0))


def _picture(matrix: NDArray[np.bool_], names: list[str]) -> Picture:
    file = io.BytesIO()
    draw_visibility(matrix, file, leaks=_leaks(matrix))
    content = file.getvalue()
    # The IHDR chunk of a PNG is the first: its width and height begin at byte 16.
    width, height = struct.unpack(">II", content[16:24])
    pairs = np.argwhere(_leaks(matrix))
    seen = "no row sees its future"
    if len(pairs):
        count = "1 leak" if len(pairs) == 1 else f"{len(pairs)} leaks"
        seen = f"{count}, the first from input position {pairs[0][1]} to row {pairs[0][0]}"
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Picture(
        source=f"data:image/png;base64,{base64.b64encode(content).decode()}",
        alt=f"Visibility of {visible(names[0][:80])}{others}, {matrix.shape[0]} rows by "
        f"{matrix.shape[1]} input positions: {seen}.",
        width=width,
        height=height,
        names=names,
    )


def _path(leak: Leak) -> list[Stretch]:
    """The path with the middle of a long one folded, but for the step that crosses positions."""
    steps = [_step(text) for text in leak.path]
    count, crossing = len(steps), leak.crossing
    ends = {0, count}
    if count > MOST_STEPS:
        ends |= {ENDS, count - ENDS}
    if crossing is not None:
        ends |= {crossing, crossing + 1}
    places = sorted(ends)
    return [
        Stretch(
            start + 1,
            steps[start:end],
            folded=count > MOST_STEPS and ENDS <= start < count - ENDS and start != crossing,
            crossing=start == crossing,
        )
        for start, end in pairwise(places)
    ]


def _step(text: str) -> Step:
    node, arrow, tensor = text.rpartition(" -> ")
    return Step(node, tensor) if arrow and len(text) <= 200 else Step(text, None)


def _parity(checks: Iterable[Check]) -> list[ErrorTable]:
    return [
        ErrorTable(
            check=check.name,
            where=f" on {visible(check.provider[:60])}" if check.provider else "",
            rows=[
                (name, _error_figures(figures))
                for name, figures in check.figures.items()
                if isinstance(figures, Mapping) and "max_abs" in figures
            ],
        )
        for check in checks
        if check.name.startswith("parity")
    ]


def _error_figures(figures: Mapping[str, Any]) -> list[str]:
    worst, budget = figures.get("max_abs"), figures.get("budget")
    used = "—"
    if isinstance(worst, int | float) and isinstance(budget, int | float):
        used = f"{worst / budget:.0%}" if budget else "exact" if worst == 0 else "over"
    return [
        *(_figure(figures.get(key)) for key in ("max_abs", "max_rel", "max_ulp", "budget")),
        used,
    ]


def _figure(value: object) -> str:
    if value is None:
        return "—"
    return f"{value:.3g}" if isinstance(value, int | float) else visible(str(value)[:40])


def _placement(placement: Mapping[str, int], wanted: Provider) -> list[PlacementRow]:
    """How many nodes ran on which provider, `wanted` first."""
    where: dict[str, dict[str, int]] = defaultdict(dict)
    for key, count in placement.items():
        operator, _, provider = key.rpartition(" on ")
        where[provider][operator] = count
    rows = []
    for provider, operators in sorted(where.items(), key=lambda item: item[0] != wanted):
        ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            PlacementRow(
                provider=provider,
                elsewhere=provider != wanted,
                nodes=f"{sum(operators.values()):,}",
                operators=", ".join(f"{count:,} {name}" for name, count in ordered),
            )
        )
    return rows
