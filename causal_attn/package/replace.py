"""Replace a folder by a new one so that an interruption leaves the old or the new, never half."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from causal_attn.atomic_file import (
    locked,
    name_beside,
    refusals_of_the_disk,
    remove_abandoned,
    sync_entry,
)
from causal_attn.errors import UsageError

__all__ = ["replacing_folder", "require_replaceable"]


@contextmanager
def replacing_folder(path: Path, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """A new, empty folder beside `path`, which takes its place when the block ends.

    If the block raises, the new folder is removed and `path` is as it was. What is in the new
    folder reaches the disk before it takes the place. On Linux the two are exchanged in one
    step; elsewhere the old one is renamed away first, and back if the second rename fails.

    A process that is killed leaves its new folder behind. Where the system has locks that die
    with their process, the next one that comes to this place removes it.

    Args:
        path: Where the folder goes; folders above it are made.
        replaceable: Whether the folder at `path`, which has something in it, may be lost.

    Raises:
        UsageError: Something at `path` may not be replaced, or the place cannot be written.
    """
    require_replaceable(path, replaceable)
    new = name_beside(path)
    with refusals_of_the_disk(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(path)
            new.mkdir()
            with locked(new):
                yield new
                _sync(new)
                require_replaceable(path, replaceable)
                _take_place(new, path)
            sync_entry(path.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def require_replaceable(path: Path, replaceable: Callable[[Path], bool]) -> None:
    """Refuse a `path` that `replacing_folder` would not replace.

    Raises:
        UsageError: There is a file, a link, or a folder with something else in it.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise UsageError(
            f"`path` must be a folder or not exist, got {str(path)!r}, which is a link or a file."
        )
    if any(path.iterdir()) and not replaceable(path):
        raise UsageError(
            f"`path` must be free, empty or an earlier package alone, got {str(path)!r}, which "
            "holds something else. Give another path, or move that away."
        )


def _take_place(new: Path, path: Path) -> None:
    """Put `new` at `path`; what was there, if anything, is left at `new` or removed."""
    if not path.exists():
        os.rename(new, path)
        return
    if _exchange(new, path):
        return
    old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, where the system can; whether it did."""
    if sys.platform != "linux":
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fcntl.h and linux/fs.h
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _sync(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            sync_entry(Path(parent, name))
        sync_entry(Path(parent))
