"""The way of gpt-fast: rotary embeddings over pairs, grouped heads, caches in buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Attention", "BufferCacheAttention", "PassedCacheAttention", "Transformer"]

WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, POSITIONS = 32, 4, 2, 8, 61, 64


def frequencies(positions: int, width: int, base: float = 10000.0) -> Tensor:
    """Cosines and sines, ``[positions, width / 2, 2]``."""
    freqs = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(positions), freqs)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotate(x: Tensor, freqs: Tensor) -> Tensor:
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    freqs = freqs.view(1, pairs.size(1), 1, pairs.size(3), 2)
    turned = torch.stack(
        [
            pairs[..., 0] * freqs[..., 0] - pairs[..., 1] * freqs[..., 1],
            pairs[..., 1] * freqs[..., 0] + pairs[..., 0] * freqs[..., 1],
        ],
        -1,
    )
    return turned.flatten(3).type_as(x)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


class Attention(nn.Module):
    """Without a cache; positions and mask come from the model."""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def project(self, x: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bsz, seqlen, _ = x.shape
        kv_size = KV_HEADS * HEAD_DIM
        q, k, v = self.wqkv(x).split([WIDTH, kv_size, kv_size], dim=-1)
        q = rotate(q.view(bsz, seqlen, HEADS, HEAD_DIM), freqs)
        k = rotate(k.view(bsz, seqlen, KV_HEADS, HEAD_DIM), freqs)
        v = v.view(bsz, seqlen, KV_HEADS, HEAD_DIM)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        out: Tensor = self.wo(y.transpose(1, 2).contiguous().view(q.shape[0], -1, WIDTH))
        return out

    def forward(self, x: Tensor, freqs: Tensor, mask: Tensor) -> Tensor:
        return self.attend(*self.project(x, freqs), mask)


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.w1 = nn.Linear(WIDTH, 48, bias=False)
        self.w3 = nn.Linear(WIDTH, 48, bias=False)
        self.w2 = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor, freqs: Tensor, mask: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs, mask)
        normed = self.ffn_norm(h)
        out: Tensor = h + self.w2(F.silu(self.w1(normed)) * self.w3(normed))
        return out


class Transformer(nn.Module):
    """The whole model, mask and frequencies looked up at the positions of the tokens."""

    freqs_cis: Tensor
    causal_mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([TransformerBlock()])
        self.norm = RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("freqs_cis", frequencies(POSITIONS, HEAD_DIM), persistent=False)
        lower = torch.tril(torch.ones(POSITIONS, POSITIONS, dtype=torch.bool))
        self.register_buffer("causal_mask", lower, persistent=False)

    def forward(self, idx: Tensor) -> Tensor:
        positions = torch.arange(idx.shape[1], device=idx.device)
        mask = self.causal_mask[None, None, positions, : idx.shape[1]]
        freqs = self.freqs_cis[positions]
        x = self.tok_embeddings(idx)
        for layer in self.layers:
            x = layer(x, freqs, mask)
        out: Tensor = self.output(self.norm(x))
        return out


class BufferCacheAttention(Attention):
    """The cache is a buffer that forward writes: a graph would start from an empty one always."""

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        shape = (2, KV_HEADS, POSITIONS, HEAD_DIM)
        self.register_buffer("k_cache", torch.zeros(shape))
        self.register_buffer("v_cache", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        positions = torch.arange(x.shape[1])
        q, k, v = self.project(x, frequencies(POSITIONS, HEAD_DIM)[positions])
        self.k_cache[:, :, positions] = k
        self.v_cache[:, :, positions] = v
        mask = torch.arange(POSITIONS)[None, :] <= positions[:, None]
        return self.attend(q, self.k_cache, self.v_cache, mask)


class PassedCacheAttention(Attention):
    """The cache comes in and goes out; new tokens follow those it has.

    Args:
        table: Whether the angles are cut from a table.
    """

    def __init__(self, table: bool = False) -> None:
        super().__init__()
        self.freqs_cis = frequencies(POSITIONS, HEAD_DIM) if table else None

    def forward(  # type: ignore[override]
        self, x: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        start = past_key.shape[2]
        total = start + x.shape[1]
        freqs = frequencies(total, HEAD_DIM) if self.freqs_cis is None else self.freqs_cis
        q, k, v = self.project(x, freqs[start:total])
        k, v = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)
        mask = torch.arange(total)[None, :] <= torch.arange(start, total)[:, None]
        return self.attend(q, k, v, mask), k, v
