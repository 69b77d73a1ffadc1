"""Files named by an untrusted file: found only inside the folder they belong to.

A location is relative, has no ``..``, and its real path, every link followed, lies inside the
root. It is written with ``/`` on every system. What is opened is a regular file: a named pipe
would block and a device would never end.
"""

from __future__ import annotations

import os
import re
import stat
from io import BufferedReader
from pathlib import Path

from causal_attn.errors import PackageError
from causal_attn.json_text import MAX_JSON_BYTES, shown

__all__ = ["confined_file", "confined_folder", "open_regular", "read_text"]

MAX_LOCATION = 1024
"""Characters of a location."""

# A colon is a drive or an alternate stream on Windows, a backslash a separator there only.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\:]")


def confined_file(root: Path, base: Path, location: object, what: str) -> Path:
    """The real path of the regular file that `location` names.

    Args:
        root: Folder that nothing may lie outside of.
        base: Folder inside `root` that `location` starts from.
        location: From the untrusted file.
        what: What names it, for messages, such as ``manifest.json: `model_file```.

    Raises:
        PackageError: `location` is not such a path, leads outside, or is no regular file.
    """
    path = _confined(root, base, location, what)
    if not stat.S_ISREG(_stat(path, what).st_mode):
        raise PackageError(f"{what} must name a regular file, got {shown(location)}.")
    return path


def confined_folder(root: Path, base: Path, location: object, what: str) -> Path:
    """The real path of the folder that `location` names; as `confined_file`.

    Raises:
        PackageError: `location` is not such a path, leads outside, or is no folder.
    """
    path = _confined(root, base, location, what)
    if not stat.S_ISDIR(_stat(path, what).st_mode):
        raise PackageError(f"{what} must name a folder, got {shown(location)}.")
    return path


def open_regular(path: Path, what: str) -> BufferedReader:
    """Open a regular file for reading, and never wait for one that is something else.

    Raises:
        PackageError: There is no regular file that can be read at `path`.
    """
    _require_regular(_stat(path, what), path, what)
    # Between the two looks the file may have been exchanged for a pipe: do not block on it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise _unreadable(what, path, error) from None
    try:
        _require_regular(os.fstat(descriptor), path, what)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: Path, what: str) -> str:
    """The UTF-8 text of a file of at most `MAX_JSON_BYTES` bytes.

    Raises:
        PackageError: The file is missing, larger, not a regular file, or not UTF-8.
    """
    with open_regular(path, what) as file:
        try:
            data = file.read(MAX_JSON_BYTES + 1)
        except OSError as error:
            raise _unreadable(what, path, error) from None
    if len(data) > MAX_JSON_BYTES:
        raise PackageError(f"{what} must be at most {MAX_JSON_BYTES} bytes, got more: {path}.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PackageError(
            f"{what} must be UTF-8 text, got {error.reason} at byte {error.start}: {path}."
        ) from None


def _confined(root: Path, base: Path, location: object, what: str) -> Path:
    if not isinstance(location, str) or not 0 < len(location) <= MAX_LOCATION:
        raise PackageError(
            f"{what} must be a path of 1 to {MAX_LOCATION} characters, got {shown(location)}."
        )
    if _FORBIDDEN.search(location) or location.startswith("/") or ".." in location.split("/"):
        raise PackageError(
            f"{what} must be a relative path with '/' and without '..', ':' or control "
            f"characters, got {shown(location)}."
        )
    try:
        real_root = os.path.realpath(root, strict=True)
        real = os.path.realpath(base / location, strict=True)
    except OSError as error:
        raise PackageError(
            f"{what} must name what is there, got {shown(location)}: {error.strerror}."
        ) from None
    if not Path(real).is_relative_to(real_root):
        raise PackageError(
            f"{what} must stay inside {root}, got {shown(location)}, a link that leads outside. "
            "Put the file itself there."
        )
    return Path(real)


def _require_regular(status: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PackageError(f"{what} must be a regular file, got another kind: {path}.")


def _stat(path: Path, what: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (OSError, ValueError) as error:
        raise _unreadable(what, path, error) from None


def _unreadable(what: str, path: Path, error: OSError | ValueError) -> PackageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return PackageError(f"{what} must be a readable file, got {str(path)!r}: {reason}.")
