"""``causal_lower_right`` and ``causal_upper_left`` of ``torch.nn.attention.bias``, as masks.

They are tensors of a class of their own, which cannot be made under torch.export, nor while ops
are run in other arithmetic. What they stand for is a boolean mask; there they are that mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import bias

__all__ = ["biases_as_masks"]

_NAME = "CausalBias"


@contextmanager
def biases_as_masks() -> Iterator[None]:
    """Inside this block a new causal bias is a mask ``[q_tokens, kv_tokens]``, True: seen."""
    kept = getattr(bias, _NAME, None)
    variant = getattr(bias, "CausalVariant", None)
    if kept is None or variant is None:
        yield
        return

    def mask(kind: Any, q_tokens: int, kv_tokens: int) -> Tensor:
        ones = torch.ones(q_tokens, kv_tokens, dtype=torch.bool)
        return ones.tril(0 if kind == variant.UPPER_LEFT else kv_tokens - q_tokens)

    setattr(bias, _NAME, mask)
    try:
        yield
    finally:
        setattr(bias, _NAME, kept)
