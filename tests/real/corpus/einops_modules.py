"""The way of lucidrains: `einops.rearrange`, `einsum`, one projection for several things."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from einops.layers.torch import Rearrange
from torch import Tensor, nn

__all__ = ["LayeredAttention", "ParallelBlock", "RearrangedAttention", "RepeatedAttention"]

WIDTH, HEADS, HEAD_DIM = 32, 4, 8


class RearrangedAttention(nn.Module):
    """Attention in letters; the future is the lowest float, softmax over what remains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=HEADS) for t in qkv)
        sim = einsum(q * HEAD_DIM**-0.5, k, "b h i d, b h j d -> b h i j")
        i, j = sim.shape[-2:]
        mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
        attn = sim.masked_fill(mask, -torch.finfo(sim.dtype).max).softmax(dim=-1)
        out = einsum(attn, v, "b h i j, b h j d -> b h i d")
        result: Tensor = self.to_out(rearrange(out, "b h n d -> b n (h d)"))
        return result


class RepeatedAttention(nn.Module):
    """Grouped heads by `repeat`, through torch's op."""

    def __init__(self, kv_heads: int = 2) -> None:
        super().__init__()
        self.kv_heads = kv_heads
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_kv = nn.Linear(WIDTH, 2 * kv_heads * HEAD_DIM, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=HEADS)
        k, v = rearrange(self.to_kv(x), "b n (two h d) -> two b h n d", two=2, h=self.kv_heads)
        k, v = (repeat(t, "b h n d -> b (h g) n d", g=HEADS // self.kv_heads) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.to_out(rearrange(out, "b h n d -> b n (h d)"))
        return result


class LayeredAttention(nn.Module):
    """`Rearrange` as a layer of an `nn.Sequential`."""

    def __init__(self) -> None:
        super().__init__()
        # The layer is a torch module that type checkers do not see as one.
        split: Any = Rearrange("b n (three h d) -> three b h n d", three=3, h=HEADS)
        join: Any = Rearrange("b h n d -> b n (h d)")
        self.split = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), split)
        self.join = nn.Sequential(join, nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x).unbind(0)
        result: Tensor = self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return result


class ParallelBlock(nn.Module):
    """PaLM's: attention with one head of keys and values beside a gated MLP, one projection."""

    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.sizes = (WIDTH, HEAD_DIM, HEAD_DIM, 128)
        self.fused = nn.Linear(WIDTH, sum(self.sizes), bias=False)
        self.attn_out, self.ff_out = nn.Linear(WIDTH, WIDTH), nn.Linear(64, WIDTH)
        exponents = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
        self.register_buffer("inv_freq", 10000.0**-exponents)

    def rotate(self, t: Tensor) -> Tensor:
        place = torch.arange(t.shape[-2], device=t.device, dtype=self.inv_freq.dtype)
        freqs = einsum(place, self.inv_freq, "i, j -> i j")
        freqs = torch.cat((freqs, freqs), dim=-1)
        a, b = rearrange(t, "... (two d) -> two ... d", two=2)
        return t * freqs.cos() + torch.cat((-b, a), dim=-1) * freqs.sin()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, ff = self.fused(self.norm(x)).split(self.sizes, dim=-1)
        q = rearrange(q, "b n (h d) -> b h n d", h=HEADS)
        q, k = self.rotate(q) * HEAD_DIM**-0.5, self.rotate(k)
        sim = einsum(q, k, "b h i d, b j d -> b h i j")
        n = x.shape[1]
        causal = torch.ones((n, n), device=x.device, dtype=torch.bool).triu(1)
        attn = sim.masked_fill(causal, float("-inf")).softmax(dim=-1)
        out = rearrange(einsum(attn, v, "b h i j, b j d -> b h i d"), "b h n d -> b n (h d)")
        value, gate = ff.chunk(2, dim=-1)
        result: Tensor = x + self.attn_out(out) + self.ff_out(F.silu(gate) * value)
        return result
