"""The sections of the HTML page about one variant, one function each."""

from __future__ import annotations

import base64
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate, Check
from causal_attn.picture import draw_visibility
from causal_attn.verify.influence import Leak
from causal_attn.verify.page.headline import leak_sentence
from causal_attn.verify.page.markup import Markup, code, foldable, prose, tag, visible

__all__ = [
    "checks",
    "leaking_path",
    "not_checked",
    "parity",
    "pictures",
    "placement",
    "table",
    "versions",
]

MOST_PICTURES = 12
MOST_STEPS = 12
"""Of a leaking path, before its middle is folded."""

RESULTS = {True: ("good", "passed"), False: ("bad", "failed"), None: ("unsure", "undecided")}


def pictures(visibility: Mapping[str, NDArray[np.bool_]]) -> Markup:
    """Which row of each output is reached by which position of the input, with how to read it."""
    if not visibility:
        return tag("p", "There is no visibility matrix to draw.", class_="soft")
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
    figures = [
        tag("figure", _picture(matrix, names), tag("figcaption", _named(names)))
        for matrix, names in drawn
    ]
    return tag(
        "div",
        tag(
            "p",
            "A row is a position of the output, a column a position of the input: blue where a "
            "change of that input can reach that row, grey where it cannot. A causal graph is "
            "grey to the right of the diagonal that ends in the lower right corner; red there is "
            "the future being seen.",
        ),
        tag("div", *figures, class_="pictures one" if len(figures) == 1 else "pictures"),
        tag("div", "Not drawn: ", _named(left), class_="soft") if left else "",
    )


def _leaks(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What lies right of the diagonal that ends in the corner: rows are the last positions."""
    queries, inputs = matrix.shape
    return np.triu(matrix, k=1 + max(inputs - queries, 0))


def _picture(matrix: NDArray[np.bool_], names: list[str]) -> Markup:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "visibility.png")
        draw_visibility(matrix, path, leaks=_leaks(matrix))
        content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    pairs = np.argwhere(_leaks(matrix))
    seen = "no row sees its future"
    if len(pairs):
        count = "1 leak" if len(pairs) == 1 else f"{len(pairs)} leaks"
        seen = f"{count}, the first from input position {pairs[0][1]} to row {pairs[0][0]}"
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return tag(
        "img",
        src=f"data:image/png;base64,{base64.b64encode(content).decode()}",
        alt=f"Visibility of {visible(names[0][:80])}{others}, {matrix.shape[0]} rows by "
        f"{matrix.shape[1]} input positions: {seen}.",
        width=width,
        height=height,
    )


def _named(names: list[str]) -> Markup:
    few, rest = names[:4], names[4:]
    first = tag("span", *(tag("span", ", " if n else "", code(few[n])) for n in range(len(few))))
    if not rest:
        return first
    return tag(
        "details",
        tag("summary", first, f" and {len(rest)} more"),
        tag("ul", *(tag("li", code(name)) for name in rest)),
    )


def leaking_path(leak: Leak) -> Markup:
    """The nodes that the first leak passes, in order; the middle of a long path is folded."""
    steps = [tag("li", _step(text)) for text in leak.path]
    start = tag("p", leak_sentence(leak))
    if not steps:
        return tag("div", start, tag("p", "The nodes between are not recorded.", class_="soft"))
    if len(steps) <= MOST_STEPS:
        return tag("div", start, tag("div", tag("ol", *steps, class_="path"), class_="leak"))
    first, between, last = steps[:4], steps[4:-4], steps[-4:]
    folded = tag(
        "details",
        tag("summary", f"{len(between)} steps in between"),
        tag("ol", *between, class_="path", start=5),
        class_="between",
    )
    ends = tag("ol", *first, class_="path"), tag("ol", *last, class_="path", start=len(steps) - 3)
    return tag("div", start, tag("div", ends[0], folded, ends[1], class_="leak"))


def _step(text: str) -> Markup:
    node, arrow, tensor = text.rpartition(" -> ")
    if not arrow or len(text) > 200:
        return foldable(text, most=160, element="code")
    return tag(
        "span", code(node, most=200), tag("span", "→ ", code(tensor, most=200), class_="to")
    )


def checks(checks: Iterable[Check]) -> Markup:
    """Every check and its result."""
    rows = []
    for check in checks:
        tone, word = RESULTS[check.passed]
        rows.append(
            tag(
                "tr",
                tag(
                    "th",
                    prose(check.name, most=60),
                    tag("span", f" on {visible(check.provider[:60])}", class_="soft")
                    if check.provider
                    else "",
                    scope="row",
                ),
                tag("td", tag("span", word, class_=f"mark {tone}")),
                tag("td", foldable(check.detail, most=400), class_="wide"),
            )
        )
    if not rows:
        return tag("p", "No check is recorded.", class_="soft")
    return table(("check", "result", "what was seen"), rows, kind="rows")


def parity(checks: Iterable[Check]) -> Markup:
    """The largest errors against the oracle, for each output."""
    parts: list[Markup] = []
    chosen = [check for check in checks if check.name.startswith("parity")]
    for check in chosen:
        rows = [
            _parity_row(name, figures)
            for name, figures in check.figures.items()
            if isinstance(figures, Mapping) and "max_abs" in figures
        ]
        where = f" on {visible(check.provider[:60])}" if check.provider else ""
        caption = tag("caption", prose(check.name, most=60), where) if len(chosen) > 1 else None
        if not rows:
            parts.append(tag("p", "No figures are recorded: see the check above.", class_="soft"))
            continue
        heads = ("output", "max abs", "max relative", "max ulp", "budget", "used")
        errors = table(heads, rows, caption=caption, numbers=True)
        label = f"Errors of {visible(check.name[:60])}{where}"
        # A region that scrolls must be reachable with the keyboard.
        parts.append(
            tag("div", errors, class_="scroll", tabindex=0, role="region", aria_label=label)
        )
    return tag("div", *parts) if parts else tag("p", "Parity was not checked.", class_="soft")


def _parity_row(name: str, figures: Mapping[str, Any]) -> Markup:
    worst, budget = figures.get("max_abs"), figures.get("budget")
    used = "—"
    if isinstance(worst, int | float) and isinstance(budget, int | float):
        used = f"{worst / budget:.0%}" if budget else "exact" if worst == 0 else "over"
    values = [_figure(figures.get(key)) for key in ("max_abs", "max_rel", "max_ulp", "budget")]
    return tag(
        "tr",
        tag("th", code(name), scope="row", class_="name"),
        *(tag("td", value, class_="number") for value in (*values, used)),
    )


def _figure(value: object) -> str:
    if value is None:
        return "—"
    return f"{value:.3g}" if isinstance(value, int | float) else visible(str(value)[:40])


def placement(placement: Mapping[str, int], wanted: Provider) -> Markup:
    """How many nodes ran on which provider."""
    where: dict[str, dict[str, int]] = defaultdict(dict)
    for key, count in placement.items():
        operator, _, provider = key.rpartition(" on ")
        where[provider][operator] = count
    rows = []
    for provider, operators in sorted(where.items(), key=lambda item: item[0] != wanted):
        ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{count:,} {name}" for name, count in ordered)
        elsewhere = tag("span", "elsewhere", class_="mark unsure")
        name = visible(provider[:60])
        marked = () if provider == wanted else (" ", elsewhere)
        head = tag("th", name, *marked, scope="row")
        rows.append(
            tag(
                "tr",
                head,
                tag("td", f"{sum(operators.values()):,}"),
                tag("td", foldable(text, most=600), class_="wide"),
            )
        )
    if not rows:
        return tag("p", "There is no record of where nodes ran.", class_="soft")
    return table(("provider", "nodes", "operators"), rows, kind="rows")


def not_checked(reasons: tuple[str, ...]) -> Markup:
    """What nobody looked at, and why."""
    if not reasons:
        return tag("p", "Nothing is recorded as left out.", class_="soft")
    return tag("ul", *(tag("li", foldable(reason, most=400)) for reason in reasons))


def versions(certificate: Certificate) -> Markup:
    """What did the checking, and the digest that binds it to the model."""
    pairs = [(visible(name[:60]), code(value)) for name, value in certificate.versions.items()]
    pairs.append(("sha256", code(certificate.digest)))
    return tag(
        "dl", *(part for name, value in pairs for part in (tag("dt", name), tag("dd", value)))
    )


def table(
    heads: tuple[str, ...],
    rows: Iterable[Markup],
    *,
    kind: str | None = None,
    caption: Markup | None = None,
    numbers: bool = False,
) -> Markup:
    """A table with a heading for each column.

    Args:
        heads: The headings.
        rows: Elements ``tr``, each with a ``th`` for the row in front.
        kind: Its class.
        caption: The element.
        numbers: All columns but the first are numbers.
    """
    columns = [
        tag("th", head, scope="col", class_="number" if numbers and index else None)
        for index, head in enumerate(heads)
    ]
    head = tag("thead", tag("tr", *columns))
    return tag("table", caption or Markup(), head, tag("tbody", *rows), class_=kind)
