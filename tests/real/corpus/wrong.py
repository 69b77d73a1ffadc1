"""Modules that must not come out: they see the future, or a graph could not say what they say."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CrossAttention", "PythonMask", "TrainingDropout", "masked_after_softmax"]

WIDTH, HEADS = 32, 4


class CrossAttention(nn.Module):
    """Queries of one sequence over the keys of another of the same length, and no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = (nn.Linear(WIDTH, n * WIDTH) for n in (1, 2, 1))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.kv(context).chunk(2, -1)
        )
        out: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class TrainingDropout(nn.Module):
    """Drops weights in eval mode too: torch's op does what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)


class PythonMask(nn.Module):
    """The mask is a list of Python numbers: those of the length that is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        tokens = range(x.shape[1])
        mask = torch.tensor([[0.0 if j <= i else -1e9 for j in tokens] for i in tokens])
        scores = q @ k.transpose(1, 2) / WIDTH**0.5 + mask
        mixed: Tensor = scores.softmax(-1) @ v
        return mixed


def masked_after_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over everything, then a mask: what is hidden has already been counted."""
    weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
    lower = torch.ones(q.shape[-2], k.shape[-2]).tril()
    mixed: Tensor = (weights * lower) @ v
    return mixed
