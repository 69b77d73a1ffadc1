"""The way of Meta's Llama and its relatives: RMS norms, rotary embeddings, heads that share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ComplexRotary", "Decoder", "LatentAttention", "Layer", "SharedHeads"]

WIDTH, HEADS, HEAD_DIM, VOCABULARY = 32, 4, 8, 61


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Rotary(nn.Module):
    """Cosines and sines of as many positions as there are tokens."""

    inv_freq: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        exponents = torch.arange(0, width, 2).float() / width
        self.register_buffer("inv_freq", 10000.0**-exponents, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[-2], device=x.device, dtype=self.inv_freq.dtype)
        angles = torch.einsum("i,j->ij", positions, self.inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        return (x * angles.cos() + rotate_half(x) * angles.sin()).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(variance + 1e-6)).type_as(x) * self.weight


class SharedHeads(nn.Module):
    """Grouped heads, or one for all queries; scores written out, mask by ``triu``.

    Args:
        kv_heads: Heads of keys and values.
        window: Tokens that a query sees, itself included.
    """

    def __init__(self, kv_heads: int = 2, window: int | None = None) -> None:
        super().__init__()
        self.kv_heads, self.window = kv_heads, window
        self.wq = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.wk = nn.Linear(WIDTH, kv_heads * HEAD_DIM, bias=False)
        self.wv = nn.Linear(WIDTH, kv_heads * HEAD_DIM, bias=False)
        self.wo = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.rotary = Rotary(HEAD_DIM)

    def heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], count, HEAD_DIM).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        bsz, seqlen, _ = x.shape
        xq = self.rotary(self.heads(self.wq(x), HEADS))
        keys = self.rotary(self.heads(self.wk(x), self.kv_heads))
        values = self.heads(self.wv(x), self.kv_heads)
        group = HEADS // self.kv_heads
        keys = keys[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)
        values = values[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(HEAD_DIM)
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
        mask = torch.triu(mask, diagonal=1)
        if self.window is not None:
            far = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
            mask = mask + torch.tril(far, diagonal=-self.window)
        weights = F.softmax((scores + mask).float(), dim=-1).type_as(xq)
        output = torch.matmul(weights, values).transpose(1, 2).contiguous()
        out: Tensor = self.wo(output.view(bsz, seqlen, -1))
        return out


class Layer(nn.Module):
    def __init__(self, kv_heads: int = 2, window: int | None = None) -> None:
        super().__init__()
        self.attention = SharedHeads(kv_heads, window)
        self.attention_norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.w1 = nn.Linear(WIDTH, 48, bias=False)
        self.w2 = nn.Linear(48, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 48, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x))
        normed = self.ffn_norm(h)
        out: Tensor = h + self.w2(F.silu(self.w1(normed)) * self.w3(normed))
        return out


class Decoder(nn.Module):
    """Whole; logits are float32 whatever the weights are."""

    def __init__(self, kv_heads: int = 2, windows: tuple[int | None, ...] = (None, None)) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(kv_heads, window) for window in windows])
        self.norm, self.output = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        logits: Tensor = self.output(self.norm(h)).float()
        return logits


class ComplexRotary(nn.Module):
    """Rotations as products of complex numbers, cut from a table.

    Args:
        buffer: Whether the table is a buffer; an attribute that every call moves, if not.
    """

    freqs_cis: Tensor

    def __init__(self, buffer: bool = True) -> None:
        super().__init__()
        self.qkv, self.wo = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        exponents = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
        angles = torch.outer(torch.arange(64), 10000.0**-exponents)
        self.buffer, table = buffer, torch.polar(torch.ones_like(angles), angles)
        if buffer:
            self.register_buffer("freqs_cis", table)
        else:
            self.freqs_cis = table

    def rotate(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs_cis[: x.shape[-2]]).flatten(-2).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        bsz, seqlen, _ = x.shape
        if not self.buffer:
            self.freqs_cis = self.freqs_cis.to(x.device)
        q, k, v = (
            part.view(bsz, seqlen, HEADS, HEAD_DIM).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        out: Tensor = self.wo(y.transpose(1, 2).reshape(bsz, seqlen, WIDTH))
        return out


class LatentAttention(nn.Module):
    """Multi-head latent attention, as DeepSeek has it: keys and values from a narrow latent.

    Part of each key is rotated and shared by all heads; values are narrower than keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nope, self.rope, self.value, self.rank = 8, 4, 6, 12
        self.wq_a, self.q_norm = nn.Linear(WIDTH, 16, bias=False), RMSNorm(16)
        self.wq_b = nn.Linear(16, HEADS * (self.nope + self.rope), bias=False)
        self.wkv_a, self.kv_norm = nn.Linear(WIDTH, self.rank + self.rope), RMSNorm(self.rank)
        self.wkv_b = nn.Linear(self.rank, HEADS * (self.nope + self.value), bias=False)
        self.wo = nn.Linear(HEADS * self.value, WIDTH, bias=False)
        self.rotary = Rotary(self.rope)

    def forward(self, x: Tensor) -> Tensor:
        bsz, seqlen, _ = x.size()
        q = self.wq_b(self.q_norm(self.wq_a(x))).view(bsz, seqlen, HEADS, -1).transpose(1, 2)
        q_nope, q_rope = torch.split(q, [self.nope, self.rope], dim=-1)
        latent, k_rope = torch.split(self.wkv_a(x), [self.rank, self.rope], dim=-1)
        kv = self.wkv_b(self.kv_norm(latent)).view(bsz, seqlen, HEADS, -1).transpose(1, 2)
        k_nope, v = torch.split(kv, [self.nope, self.value], dim=-1)
        k_rope = self.rotary(k_rope.unsqueeze(1)).expand(-1, HEADS, -1, -1)
        q = torch.cat([q_nope, self.rotary(q_rope)], dim=-1)
        k = torch.cat([k_nope, k_rope], dim=-1)
        scores = torch.einsum("bhsd,bhtd->bhst", q, k) * (self.nope + self.rope) ** -0.5
        scores = scores + torch.full((seqlen, seqlen), float("-inf")).triu_(1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)
        mixed = torch.einsum("bhst,bhtd->bshd", weights, v)
        out: Tensor = self.wo(mixed.flatten(2))
        return out
