"""Which release of ONNX Runtime a graph needs, and how releases compare."""

from __future__ import annotations

__all__ = ["OLDEST", "release"]

OLDEST = "1.24"
"""The oldest ONNX Runtime that tells where it placed each node: without that nothing is loaded."""


def release(version: str) -> tuple[int, ...]:
    """``1.24.1+cu12`` as ``(1, 24)``; what is not a number counts as the newest."""
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 1 << 30 for part in parts)
