"""Functions and tables that keep what they made for a length: ``functools.lru_cache``, a dict.

A dynamic size has no hash in torch, so that such code cannot be traced. Here it has one of its
own: it finds nothing that is kept for a number, and nothing else finds what is made for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import SymInt

__all__ = ["hashed_sizes"]


@contextmanager
def hashed_sizes() -> Iterator[None]:
    """Inside this block a dynamic size is a key like any other, unequal to every number."""

    def identity(size: SymInt) -> int:
        return id(size.node)

    with patch.object(SymInt, "__hash__", identity):
        yield
