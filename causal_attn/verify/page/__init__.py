"""What `verify` found, as one HTML file that holds everything it shows and loads nothing.

The file is the same bytes for the same report: no time, no random name. A content security
policy forbids scripts and every request, so that a page about an untrusted model can be opened,
mailed and archived; `causal_attn.verify.page.markup` escapes what comes from the model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from causal_attn.errors import UsageError
from causal_attn.verify.page import sections
from causal_attn.verify.page.headline import Headline, headline
from causal_attn.verify.page.markup import Markup, code, foldable, tag, visible
from causal_attn.verify.page.style import STYLE
from causal_attn.verify.report import Report, VariantReport

__all__ = ["render_page", "write_page"]

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
GENERATOR = tag("meta", name="generator", content="causal-attn verify")
"""How an earlier page is known from somebody's website."""

ICONS = {
    "good": "M7.5 12.5l3 3 6-7",
    "conditional": "M8 9.5c1.5-1.5 3-1.5 4 0s2.5 1.5 4 0M8 14.5c1.5-1.5 3-1.5 4 0s2.5 1.5 4 0",
    "unsure": "M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 16.7v.1",
    "bad": "M8.5 8.5l7 7M15.5 8.5l-7 7",
}
"""Shapes in a circle of 24 units: the verdict is not told by colour alone."""


def write_page(report: Report, folder: str | Path) -> Path:
    """Write ``index.html`` into `folder` and return its path.

    An earlier page of `verify` is replaced once the new one is complete.

    Args:
        report: What `causal_attn.verify.verify` returned.
        folder: Where the page goes; it and the folders above it are made.

    Raises:
        UsageError: `folder` is a file, holds an ``index.html`` of something else, or cannot be
            written.
        MissingDependencyError: matplotlib, which draws the pictures, is not installed.
    """
    folder = Path(folder)
    path = folder / "index.html"
    _require_free(folder, path)
    content = render_page(report).encode()
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".index.html.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private to its owner; the page gets what a new file would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise UsageError(
            f"`folder` must be a place that can be written, got {str(folder)!r}: {error.strerror}."
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def render_page(report: Report) -> str:
    """The page as text that every encoding for HTML can carry.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    name = report.path.name or str(report.path)
    headlines = [headline(variant) for variant in report.variants]
    words = ", ".join(dict.fromkeys(line.words for line in headlines)) or "Nothing was checked"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        GENERATOR,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", visible(f"{words}: {name[:200]}")),
        tag("style", Markup(STYLE)),
    )
    header = tag(
        "header",
        tag("p", "causal-attn verify", class_="from"),
        tag("h1", code(name)),
        tag("ul", *map(_banner, report.variants, headlines), class_="verdicts")
        if headlines
        else tag("p", "Nothing was checked."),
        tag("p", _exit_sentence(report.exit_code), class_="soft"),
    )
    articles = [
        _article(variant, line, f"v{index}")
        for index, (variant, line) in enumerate(zip(report.variants, headlines, strict=True))
    ]
    footer = tag("footer", "Verified: ", code(str(report.path), most=160))
    body = tag("body", header, tag("main", *articles, _skipped(report.skipped)), footer)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _exit_sentence(code: int) -> str:
    meaning = {0: "all checks passed", 1: "a check failed", 3: "something could not be decided"}
    return f"Exit code {code}: {meaning.get(code, 'see the reasons below')}."


def _banner(variant: VariantReport, line: Headline) -> Markup:
    return tag(
        "li",
        _icon(line.tone),
        tag(
            "div",
            tag("p", line.words, class_="word"),
            tag("p", line.reason),
            tag("p", code(variant.variant), f" on {variant.provider}", class_="where"),
        ),
        class_=line.tone,
    )


def _icon(tone: str) -> Markup:
    shapes = tag("circle", cx="12", cy="12", r="10"), tag("path", d=ICONS[tone])
    return tag("svg", *shapes, viewBox="0 0 24 24", aria_hidden="true")


def _article(variant: VariantReport, line: Headline, anchor: str) -> Markup:
    certificate = variant.certificate
    title = tag("h2", code(variant.variant), tag("span", f" on {variant.provider}"), id=anchor)
    mark = tag("span", line.words, class_=f"mark {line.tone}")
    parts = [("What each output sees", sections.pictures(variant.visibility))]
    if variant.leak is not None:
        parts.append(("The leaking path", sections.leaking_path(variant.leak)))
    parts += [
        ("Checks", sections.checks(certificate.checks)),
        ("Parity", sections.parity(certificate.checks)),
        ("Placement", sections.placement(variant.placement, variant.provider)),
        ("What was not checked", sections.not_checked(variant.not_checked)),
        ("Versions and digest", sections.versions(certificate)),
    ]
    return tag(
        "article",
        tag("div", title, mark, class_="title"),
        *(tag("section", tag("h3", heading), content) for heading, content in parts),
        aria_labelledby=anchor,
    )


def _skipped(skipped: Mapping[str, str]) -> Markup:
    if not skipped:
        return Markup()
    rows = [
        tag("tr", tag("th", code(name), scope="row"), tag("td", foldable(reason, most=400)))
        for name, reason in skipped.items()
    ]
    table = sections.table(("variant", "reason"), rows)
    title = tag("h2", "Variants that were not run", id="skipped")
    return tag("article", title, table, aria_labelledby="skipped")


def _require_free(folder: Path, path: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(
            f"`folder` must be a folder or not exist, got {str(folder)!r}, which is neither. "
            "Give another one, or move that away."
        )
    if not os.path.lexists(path):
        return
    try:
        ours = path.is_file() and GENERATOR.encode() in path.read_bytes()[:2048]
    except OSError:
        ours = False
    if not ours:
        raise UsageError(
            f"`folder` must have no index.html of something else, got {str(folder)!r}. "
            "Give another one, or move that file away."
        )
