"""Ways to tell a model where a token stands, and how far it sees."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Alibi", "BucketedBias", "GrownAngles", "KeptAlibi", "LogN", "SinusoidalDecoder", "Windowed"
]  # fmt: skip

WIDTH, HEADS, HEAD_DIM, VOCABULARY = 32, 4, 8, 61


def split_heads(x: Tensor, parts: int) -> tuple[Tensor, ...]:
    """``[batch, tokens, parts * width]`` to `parts` of ``[batch, heads, tokens, head_dim]``."""
    return tuple(part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in x.chunk(parts, -1))


class Biased(nn.Module):
    """Attention with something added to its scores before the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def bias(self, tokens: int) -> Tensor:
        """``[heads, tokens, tokens]``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_heads(self.qkv(x), 3)
        tokens = x.shape[1]
        scores = q @ k.mT / math.sqrt(HEAD_DIM) + self.bias(tokens)
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


class Alibi(Biased):
    """Press et al. 2022: a penalty that grows with the distance, steeper from head to head."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        slopes = 2.0 ** (-8.0 / HEADS * torch.arange(1, HEADS + 1))
        self.register_buffer("slopes", slopes)

    def bias(self, tokens: int) -> Tensor:
        place = torch.arange(tokens)
        return self.slopes[:, None, None] * (place[None, :] - place[:, None])


class KeptAlibi(Alibi):
    """The bias of the longest call so far is kept in a buffer, which nothing is in at first."""

    kept: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", None, persistent=False)

    def bias(self, tokens: int) -> Tensor:
        if self.kept is None or self.kept.shape[-1] < tokens:
            self.register_buffer("kept", super().bias(tokens), persistent=False)
        assert self.kept is not None
        return self.kept[:, :tokens, :tokens]


class GrownAngles(nn.Module):
    """Rotary embeddings as early Llamas have them: tables that a longer call makes larger."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.make(64)

    def make(self, tokens: int) -> None:
        self.made = tokens
        rates = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = torch.outer(torch.arange(tokens), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotated(self, x: Tensor, places: Tensor) -> Tensor:
        early, late = x.chunk(2, dim=-1)
        return x * self.cos[places] + torch.cat([-late, early], dim=-1) * self.sin[places]

    def forward(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        tokens = x.shape[1]
        if tokens > self.made:
            self.make(tokens)
        if positions is None:
            positions = torch.arange(tokens, device=x.device)
        q, k, v = split_heads(self.qkv(x), 3)
        scores = self.rotated(q, positions) @ self.rotated(k, positions).mT / math.sqrt(HEAD_DIM)
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        weights = torch.where(seen, scores, -torch.inf).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2), weights


class BucketedBias(Biased):
    """T5's: a learned number for each head and each bucket of distances, far ones share theirs."""

    def __init__(self, buckets: int = 16, farthest: int = 32) -> None:
        super().__init__()
        self.buckets, self.farthest = buckets, farthest
        self.table = nn.Embedding(buckets, HEADS)

    def bias(self, tokens: int) -> Tensor:
        place = torch.arange(tokens)
        distance = (place[:, None] - place[None, :]).clamp(min=0)
        exact = self.buckets // 2
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.farthest / exact)
        far = (exact + (far * (self.buckets - exact)).long()).clamp(max=self.buckets - 1)
        bucket = torch.where(distance < exact, distance, far)
        bias: Tensor = self.table(bucket).permute(2, 0, 1)
        return bias


class Windowed(nn.Module):
    """A band of tokens, its mask boolean, through torch's op."""

    def __init__(self, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_heads(self.qkv(x), 3)
        place = torch.arange(x.shape[1], device=x.device)
        back = place[:, None] - place[None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < self.window))
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class LogN(nn.Module):
    """Queries grow with the logarithm of their position, so that long contexts stay sharp."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_heads(self.qkv(x), 3)
        place = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
        q = q * (place.log() / math.log(8)).clamp(min=1)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class SinusoidalDecoder(nn.Module):
    """Vaswani et al. 2017: fixed waves added to the embeddings, norms after the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = Windowed(window=1_000_000)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def waves(self, tokens: int) -> Tensor:
        place = torch.arange(tokens).unsqueeze(1)
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        return torch.stack([torch.sin(place * rate), torch.cos(place * rate)], -1).flatten(1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * math.sqrt(WIDTH)
        x = x + self.waves(ids.shape[1]).to(x.dtype)
        logits: Tensor = self.head(self.norm(x + self.attention(x)))
        return logits
