"""The way of litgpt: one file for many models, projections by groups, rotary halves, checks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GPT", "AttentionWithRope"]

WIDTH, HEADS, GROUPS, HEAD_SIZE, VOCABULARY, POSITIONS = 32, 4, 2, 8, 61, 64


def build_rope_cache(length: int, width: int) -> tuple[Tensor, Tensor]:
    theta = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(length), theta).repeat(1, 2)
    return torch.cos(angles), torch.sin(angles)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.size(-1) // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    if cos.dim() > 1:
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    return ((x * cos) + (turned * sin)).to(dtype=x.dtype)


class CausalSelfAttention(nn.Module):
    """Queries, keys and values of a group lie beside one another in one projection."""

    def __init__(self, rotated: int = HEAD_SIZE, norm_qk: bool = False) -> None:
        super().__init__()
        self.attn = nn.Linear(WIDTH, (HEADS + 2 * GROUPS) * HEAD_SIZE)
        self.proj = nn.Linear(HEADS * HEAD_SIZE, WIDTH)
        self.rotated = rotated
        self.norm_q = nn.RMSNorm(HEAD_SIZE) if norm_qk else nn.Identity()
        self.norm_k = nn.RMSNorm(HEAD_SIZE) if norm_qk else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, _ = x.size()
        q_per_kv = HEADS // GROUPS
        qkv = self.attn(x).view(B, T, GROUPS, q_per_kv + 2, HEAD_SIZE).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((q_per_kv, 1, 1), dim=2)
        if GROUPS != HEADS:
            k = k.expand(B, GROUPS, q_per_kv, T, HEAD_SIZE)
            v = v.expand(B, GROUPS, q_per_kv, T, HEAD_SIZE)
        q = self.norm_q(q.reshape(B, -1, T, HEAD_SIZE))
        k = self.norm_k(k.reshape(B, -1, T, HEAD_SIZE))
        v = v.reshape(B, -1, T, HEAD_SIZE)
        n = self.rotated
        q = torch.cat((apply_rope(q[..., :n], cos, sin), q[..., n:]), dim=-1)
        k = torch.cat((apply_rope(k[..., :n], cos, sin), k[..., n:]), dim=-1)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=0.0, scale=1.0 / math.sqrt(HEAD_SIZE),
            is_causal=mask is None,
        )  # fmt: skip
        out: Tensor = self.proj(y.transpose(1, 2).reshape(B, T, HEADS * HEAD_SIZE))
        return out


class Block(nn.Module):
    """Attention and MLP one after the other, or both on one norm."""

    def __init__(self, parallel: bool, rotated: int, norm_qk: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = CausalSelfAttention(rotated, norm_qk)
        self.fc, self.proj = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.parallel = parallel

    def mlp(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(F.gelu(self.fc(x)))
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attended: Tensor = self.attn(self.norm_1(x), cos, sin)
        if self.parallel:
            return attended + self.mlp(self.norm_2(x)) + x
        x = attended + x
        return self.mlp(self.norm_2(x)) + x


class GPT(nn.Module):
    """The whole model; a length beyond the longest is refused by it."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, *, parallel: bool = False, rotated: int = HEAD_SIZE, norm_qk: bool = False
    ) -> None:
        super().__init__()
        self.max_seq_length = POSITIONS
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.h = nn.ModuleList([Block(parallel, rotated, norm_qk) for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        cos, sin = build_rope_cache(POSITIONS, rotated)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, idx: Tensor) -> Tensor:
        T = idx.size(1)
        if self.max_seq_length < T:
            raise ValueError(f"cannot forward {T} tokens, at most {self.max_seq_length}")
        cos, sin = self.cos[:T], self.sin[:T]
        x = self.wte(idx)
        for block in self.h:
            x = block(x, cos, sin)
        out: Tensor = self.lm_head(self.ln_f(x))
        return out


class AttentionWithRope(nn.Module):
    """The attention with its own table, so that the tokens alone go in."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attn = CausalSelfAttention()
        cos, sin = build_rope_cache(POSITIONS, HEAD_SIZE)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        T = x.size(1)
        out: Tensor = self.attn(x, self.cos[:T], self.sin[:T])
        return out
