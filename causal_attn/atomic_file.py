"""Files that are the old one or the new one, whatever happens while they are written.

What is new is written beside its place, in the same folder and so on the same file system, and
takes the place in one step when it is complete and on the disk. `causal_attn.package.replace` does
the same with folders.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from causal_attn.errors import CausalAttnError, UsageError

__all__ = [
    "locked",
    "name_beside",
    "refusals_of_the_disk",
    "remove_abandoned",
    "replacing_file",
    "sync_entry",
]

_YOUNG_SECONDS = 10.0
"""Between the making of a new entry and its lock another process must not take it for old."""


@contextmanager
def replacing_file(
    path: Path,
    argument: str = "path",
    *,
    error: type[CausalAttnError] = UsageError,
    mode: int = 0o666,
) -> Iterator[BinaryIO]:
    """A new, empty file beside `path`, which takes its place when the block ends.

    If the block raises, the new file is removed and `path` is as it was. A process that is killed
    leaves its new file behind, and the next one that writes to `path` removes it, as
    `remove_abandoned` says. An older file hands on its permissions; a link stays a link, and what
    it points to is replaced.

    Args:
        path: Where the file goes; its folder exists.
        argument: What errors call `path`.
        error: What is raised where the place cannot be written.
        mode: Permissions of a file that was not there before, less the umask.

    Raises:
        CausalAttnError: Of type `error`: something at `path` is no regular file, or the system
            refuses to write there. What the block raises passes, but an `OSError` becomes this.
    """
    with refusals_of_the_disk(path, argument, error):
        target = Path(os.path.realpath(path))
        kept = _mode(target)
        remove_abandoned(target)
        new = name_beside(target)
        try:
            # A file that others may not read is not readable either while it is written.
            new.touch(mode if kept is None else 0o600, exist_ok=False)
            with locked(new):
                with new.open("r+b") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                if kept is not None:
                    new.chmod(kept)
                os.replace(new, target)
        except BaseException:
            # What went wrong is told, rather than that the rest cannot be removed either.
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise


@contextmanager
def refusals_of_the_disk(
    path: Path, argument: str = "path", error: type[CausalAttnError] = UsageError
) -> Iterator[None]:
    """Turn an `OSError` of the block into one of ours, which names the place.

    Args:
        path: The place that the block writes to.
        argument: What the message calls it.
        error: What is raised.

    Raises:
        CausalAttnError: Of type `error`, for an `OSError`.
    """
    try:
        yield
    except OSError as refusal:
        raise error(
            f"`{argument}` must be a place that can be written, got {str(path)!r}: "
            f"{refusal.strerror or refusal}."
        ) from None


def name_beside(path: Path) -> Path:
    """A free name in the folder of `path`, for what is to take its place."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock on a file or folder that ends with this process; ``False``: another holds it."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(descriptor)


def remove_abandoned(path: Path) -> None:
    """Remove what processes that are gone meant to put at `path`, and not what live ones do.

    Windows has no lock that would tell, and nothing is removed there.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    entries: list[Path] = []
    with suppress(OSError):  # a folder may be written and not listed
        entries = [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)]
    for entry in entries:
        # Another process may remove it first, or it is not ours to look into.
        with suppress(OSError):
            found = entry.lstat()
            known = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
            if not known or time.time() - found.st_ctime < _YOUNG_SECONDS:
                continue
            with locked(entry) as abandoned:
                if abandoned and stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(entry, ignore_errors=True)
                elif abandoned:
                    entry.unlink()


def sync_entry(path: Path) -> None:
    """Wait until a file, or the list of names of a folder, is on the disk."""
    if sys.platform == "win32":  # folders cannot be opened there, nor read-only files flushed
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode(target: Path) -> int | None:
    """Permissions of the regular file at `target`; ``None`` if nothing is there."""
    try:
        found = target.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "It is no regular file")
    return stat.S_IMODE(found.st_mode) & 0o777
