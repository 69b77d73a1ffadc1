"""A target run as its own source says, whatever it is compiled with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from causal_attn.export.capture.flex_attention import flex_by_definition

__all__ = ["as_written"]


@contextmanager
def as_written() -> Iterator[None]:
    """Inside this block ``torch.compile`` compiles nothing and torch says nothing about it.

    ``flex_attention``, which would compile itself, is its own definition.

    A compiled module or function, at any depth of a target, would be compiled again for every
    length that is checked, and its results would be those of a compiler instead of the target's.
    """
    with torch.compiler.set_stance("force_eager"), flex_by_definition():
        yield
