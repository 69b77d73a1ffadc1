"""What `verify` found, as one HTML file that holds everything it shows and loads nothing.

The file is the same bytes for the same report: no time, no random name. A content security
policy forbids scripts and every request, so that a page about an untrusted model can be opened,
mailed and archived; the templates escape what comes from the model.
"""

from __future__ import annotations

import os
from pathlib import Path

from causal_attn.atomic_file import refusals_of_the_disk, replacing_file
from causal_attn.errors import UsageError
from causal_attn.verify.page.sections import RESULTS, part
from causal_attn.verify.page.template import render
from causal_attn.verify.page.text import visible
from causal_attn.verify.report import Report

__all__ = ["render_page", "write_page"]

GENERATOR = b'<meta name="generator" content="causal-attn verify">'
"""In every page: how an earlier one is known from somebody's website."""

_MEANING = {0: "all checks passed", 1: "a check failed", 3: "something could not be decided"}


def write_page(report: Report, folder: str | Path) -> Path:
    """Write ``index.html`` into `folder` and return its path.

    An earlier page of `verify` is replaced once the new one is complete.

    Args:
        report: What `causal_attn.verify.verify` returned.
        folder: Where the page goes; it and the folders above it are made.

    Raises:
        UsageError: `folder` is a file, holds an ``index.html`` of something else, or cannot be
            written.
        MissingDependencyError: jinja2, or matplotlib, which draws the pictures, is not installed.
    """
    folder = Path(folder)
    path = folder / "index.html"
    _require_free(folder, path)
    content = render_page(report).encode()
    with refusals_of_the_disk(folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing_file(path, "folder") as file:
        file.write(content)
    return path


def render_page(report: Report) -> str:
    """The page as text that every encoding for HTML can carry.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed.
    """
    name = report.path.name or str(report.path)
    parts = [part(variant, f"v{index}") for index, variant in enumerate(report.variants)]
    verdicts = ", ".join(dict.fromkeys(one.headline.words for one in parts))
    return render(
        "page.html.j2",
        report=report,
        name=name,
        title=visible(f"{verdicts or 'Nothing was checked'}: {name[:200]}"),
        parts=parts,
        results=RESULTS,
        meaning=_MEANING.get(report.exit_code, "see the reasons below"),
    )


def _require_free(folder: Path, path: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(
            f"`folder` must be a folder or not exist, got {str(folder)!r}, which is neither. "
            "Give another one, or move that away."
        )
    if not os.path.lexists(path):
        return
    try:
        ours = path.is_file() and GENERATOR in path.read_bytes()[:2048]
    except OSError:
        ours = False
    if not ours:
        raise UsageError(
            f"`folder` must have no index.html of something else, got {str(folder)!r}. "
            "Give another one, or move that file away."
        )
