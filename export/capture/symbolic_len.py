"""``len(x)`` of a tensor whose first size is dynamic.

Python takes nothing but a number from ``len``, which fixes the size for good while tracing. Where
code looks ``len`` up, it finds here one that answers with the size itself.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import SymInt, Tensor

__all__ = ["symbolic_len"]


@contextmanager
def symbolic_len() -> Iterator[None]:
    """Inside this block ``len`` of such a tensor is ``x.shape[0]``; of all else what it was."""
    counted = builtins.len

    def size(value: Any, /) -> Any:
        if isinstance(value, Tensor) and value.dim() and isinstance(value.shape[0], SymInt):
            return value.shape[0]
        return counted(value)

    with patch.object(builtins, "len", size):
        yield
