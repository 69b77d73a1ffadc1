"""``nn.TransformerEncoder(x, mask=m)`` without a hint whether the mask is causal.

torch 2.13 then compares the mask's values with a causal one, a Python branch on data that
torch.export cannot take. The answer is a hint for speed alone: without it the mask is applied as
it is, and whether it is the causal one is found in the traced program (`causal_mask`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules import transformer

__all__ = ["masks_as_given"]

_NAME = "_detect_is_causal_mask"


@contextmanager
def masks_as_given() -> Iterator[None]:
    """Inside this block torch's encoders and decoders do not look into masks."""
    looking = getattr(transformer, _NAME, None)
    if looking is None:
        # A release without that function has no branch to take out.
        yield
        return

    def as_told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    setattr(transformer, _NAME, as_told)
    try:
        yield
    finally:
        setattr(transformer, _NAME, looking)
