"""What every command shares: two consoles, the flag for JSON, progress, and how an error looks."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["JsonFlag", "ProviderFlag", "err", "fail", "out", "print_json", "progress", "steps"]

out, err = Console(), Console(stderr=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")]
ProviderFlag = Annotated[
    str, typer.Option("--provider", "-p", help="cpu, cuda, tensorrt, openvino or webgpu.")
]

_ESCAPE_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_ADVICE = re.compile(r"\s*Next steps:.*?(?=\n\s*\n|\Z)", re.DOTALL)
"""What torch appends to an error about torch's own interfaces, none of which is at hand here."""


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """A spinner on stderr that names the step under way.

    What a user's own code prints meanwhile goes there too: stdout is for results.
    """
    with err.status("start") as status, contextlib.redirect_stdout(sys.stderr):
        yield lambda step: status.update(escape(step))


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr with the step under way."""
    from rich import progress as bars

    columns = (
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}"),
    )
    with bars.Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("start")
        yield lambda done, total, words: bar.update(
            task, completed=done, total=total, description=escape(words)
        )


def print_json(value: Any) -> None:
    """JSON on stdout, as it is: no console wraps or colours it."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def fail(message: str, code: int) -> NoReturn:
    """Print `message` as one line on stderr and exit with `code`.

    A message may quote a file or the error of other code: neither reaches the terminal as codes.
    """
    text = _ADVICE.sub("", _ESCAPE_CODES.sub("", message))
    text = _CONTROL.sub("", re.sub(r"\s*\n\s*", " ", text.strip()))
    err.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    sys.exit(code)
