"""Where a deployment is written: a free place, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from causal_attn.errors import UsageError
from causal_attn.package.replace import replacing_folder

__all__ = ["free_place", "require_free_place"]


def require_free_place(out: Path) -> None:
    """Refuse a place that has something at it: what others run is never written over.

    Raises:
        UsageError: There is something else than an empty folder.
    """
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"`out` must be free or an empty folder, got {str(out)!r}, where something is. Give "
            "another, or move that away."
        )


@contextmanager
def free_place(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, which takes its place when the block ends without an error.

    Raises:
        UsageError: Something is at `out`, or it cannot be written.
    """
    out = out.absolute()
    require_free_place(out)
    with replacing_folder(out, lambda _: False) as staged:
        yield staged
