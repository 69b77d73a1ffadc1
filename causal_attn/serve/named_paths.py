"""What clients call the packages of a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from causal_attn.errors import UsageError

__all__ = ["named_paths"]

_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


def named_paths(packages: Sequence[str]) -> dict[str, Path]:
    """``PATH`` or ``NAME=PATH`` to names and paths; a path alone is called by its last part.

    Raises:
        UsageError: There is none, a name has other characters than letters, digits, ``_``, ``.``
            and ``-``, or two are the same.
    """
    if not packages:
        raise UsageError("`packages` must name at least one, got none.")
    paths: dict[str, Path] = {}
    for entry in packages:
        name, equals, path = entry.partition("=")
        if not equals:
            name, path = Path(entry).resolve().name.removesuffix(".onnx"), entry
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"`packages` must have names of letters, digits, _, . and -, got {name!r}. Write "
                f"NAME={path}."
            )
        if name in paths:
            raise UsageError(
                f"`packages` must have different names, got {name!r} twice. Write NAME=PATH."
            )
        paths[name] = Path(path)
    return paths
