"""Packages that come with causal_attn.

``causal_attention`` is the reference op in float32, ``[batch, heads, tokens, features]``, with
variants for ``cpu``, ``cuda``, ``openvino`` and ``webgpu``; ``make models`` builds it again.
"""

from __future__ import annotations

from pathlib import Path

from causal_attn.errors import UsageError

__all__ = ["names", "path"]

_HERE = Path(__file__).resolve().parent


def names() -> tuple[str, ...]:
    """The packages there are."""
    return tuple(sorted(manifest.parent.name for manifest in _HERE.glob("*/manifest.json")))


def path(name: str) -> Path:
    """The folder of the package called `name`, for `causal_attn.runtime.load`.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    if name not in names():
        raise UsageError(f"`name` must be one of {list(names())}, got {name!r}.")
    return _HERE / name
