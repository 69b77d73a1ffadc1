"""Keep what torch and its exporters print away from the user, in a log file that errors name."""

from __future__ import annotations

import contextlib
import io
import logging
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from causal_attn.atomic_file import replacing_file
from causal_attn.errors import UsageError

__all__ = ["ExportLog", "quiet"]

_LOGGERS = ("torch", "onnxscript", "onnx_ir")


class ExportLog:
    """Everything torch printed, warned and logged during an export.

    The file is written only when an error names it, so a successful export leaves none behind.

    Args:
        kept: Whether errors name a file at all. One that is caught and counted as an answer, as
            that of a form which is only tried, must leave none.
    """

    def __init__(self, *, kept: bool = True) -> None:
        self._text = io.StringIO()
        self._kept = kept

    @property
    def stream(self) -> io.StringIO:
        """Where output is collected."""
        return self._text

    def add(self, text: str) -> None:
        """Append a paragraph, such as a traceback."""
        self._text.write(text.rstrip() + "\n")

    def pointer(self) -> str:
        """A clause that names a new file with the log, in the system's temporary folder."""
        if not self._kept:
            return "torch's own report was not kept"
        path = Path(tempfile.gettempdir(), f"causal_attn-export-{secrets.token_hex(4)}.log")
        try:
            # For its owner alone: the folder is everybody's, and the report shows source.
            with replacing_file(path, mode=0o600) as file:
                file.write(self._text.getvalue().encode(errors="backslashreplace"))
        except UsageError as error:
            # The error that this clause belongs to says more than that the disk is full.
            return f"torch's own report could not be kept: {error}".rstrip(".")
        return f"torch's own report is in {path}"


@contextlib.contextmanager
def quiet(log: ExportLog) -> Iterator[None]:
    """Send Python's stdout, stderr, warnings and torch's loggers to `log` inside the block.

    Process-wide while it lasts, as those streams are.
    """
    handler = logging.StreamHandler(log.stream)
    held = _swap_handlers(handler)
    try:
        with (
            contextlib.redirect_stdout(log.stream),
            contextlib.redirect_stderr(log.stream),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always")
            # catch_warnings saved showwarning; this one is undone with it.
            warnings.showwarning = lambda message, category, *_args, **_kwargs: log.add(
                f"{category.__name__}: {message}"
            )
            yield
    finally:
        for logger, handlers, propagate in held:
            logger.handlers[:], logger.propagate = handlers, propagate


def _swap_handlers(
    handler: logging.Handler,
) -> list[tuple[logging.Logger, list[logging.Handler], bool]]:
    """Point torch's loggers at `handler`.

    torch binds its handlers to the stderr of import time, so redirecting stderr is not enough.
    """
    held = []
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] not in _LOGGERS or not isinstance(logger, logging.Logger):
            continue
        if logger.handlers or name in _LOGGERS:
            held.append((logger, list(logger.handlers), logger.propagate))
            logger.handlers[:] = [handler]
            logger.propagate = False
    return held
