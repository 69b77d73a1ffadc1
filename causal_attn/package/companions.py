"""Files of the ecosystem that lie beside a model: its configuration and its tokenizer."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from causal_attn.errors import PackageError
from causal_attn.package.confine import open_regular

__all__ = ["COMPANIONS", "companion_digests"]

COMPANIONS = (
    "config.json", "generation_config.json", "genai_config.json", "chat_template.jinja",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
"""Those that a package may have; nothing else is read as one."""

_MOST_BYTES = 1 << 30


def companion_digests(folder: Path) -> dict[str, str]:
    """sha256, in hex, of each of `COMPANIONS` that is in `folder`, by its name.

    Raises:
        PackageError: One is no regular file, cannot be read, or is larger than 1 GiB.
    """
    return {name: _sha256(folder / name) for name in COMPANIONS if os.path.lexists(folder / name)}


def _sha256(path: Path) -> str:
    with open_regular(path, "A companion") as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise PackageError(f"A companion must be at most {_MOST_BYTES} bytes: {path}.")
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise PackageError(f"A companion must be readable: {path}: {error}.") from None
