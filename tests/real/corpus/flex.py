"""Attention by `flex_attention`, the way its examples and the libraries that use it write it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
)

__all__ = ["Documents", "FlexAttention"]

WIDTH, HEADS, HEAD_DIM = 32, 4, 8


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


@lru_cache
def mask_of(window: int | None, tokens: int, device: str) -> BlockMask:
    """A causal mask, kept for the next call with as many tokens."""
    if window is None:
        return create_block_mask(causal, None, None, tokens, tokens, device)

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query - key < window

    return create_block_mask(and_masks(causal, near), None, None, tokens, tokens, device)


class FlexAttention(nn.Module):
    """Two heads of keys and values for four of queries.

    Args:
        window: Keys that a query sees; ``None``: all of the past.
        alibi: Whether scores fall with the distance.
    """

    def __init__(self, window: int | None = None, alibi: bool = False) -> None:
        super().__init__()
        self.window, self.alibi = window, alibi
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wkv = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("slopes", torch.exp2(-2.0 * torch.arange(1, HEADS + 1)))

    def falling(
        self, score: Tensor, b: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        slopes: Tensor = self.slopes  # type: ignore[assignment]
        return score + slopes[head] * (key - query)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.wq(x).view(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2)
        kv = self.wkv(x).view(batch, tokens, 2, HEADS // 2, HEAD_DIM)
        k, v = kv.permute(2, 0, 3, 1, 4)
        made: Any = flex_attention(
            q, k, v, score_mod=self.falling if self.alibi else None,
            block_mask=mask_of(self.window, tokens, str(x.device)), enable_gqa=True,
        )  # fmt: skip
        y: Tensor = made.transpose(1, 2).contiguous().view(batch, tokens, -1)
        out: Tensor = self.wo(y)
        return out


class Documents(nn.Module):
    """Packed documents: a token sees the past of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)

        def own(b: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return documents[b, query] == documents[b, key]

        mask = create_block_mask(and_masks(causal, own), batch, None, tokens, tokens, x.device)
        y: Any = flex_attention(q, k, v, block_mask=mask)
        out: Tensor = y.transpose(1, 2).flatten(2)
        return out
