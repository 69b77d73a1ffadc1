"""torch's own modules, the way its documentation and tutorials use them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "DecoderLayer", "Encoder", "EncoderLayer", "MultiHead", "TutorialAttention", "TutorialModel"
]  # fmt: skip

WIDTH, HEADS, VOCABULARY, POSITIONS = 32, 4, 61, 64


def causal(tokens: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(tokens)


class MultiHead(nn.Module):
    """`nn.MultiheadAttention` on itself.

    Args:
        hint: Whether ``is_causal`` is said besides the mask.
        need_weights: Whether the mean of the weights comes out too.
        boolean: Whether the mask is one of truth values.
    """

    def __init__(
        self, hint: bool = True, need_weights: bool = False, boolean: bool = False
    ) -> None:
        super().__init__()
        self.hint, self.need_weights, self.boolean = hint, need_weights, boolean
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        tokens = x.shape[1]
        mask = causal(tokens)
        if self.boolean:
            mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        y, weights = self.attention(
            x, x, x, attn_mask=mask, is_causal=self.hint, need_weights=self.need_weights
        )
        return y, weights


class EncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` as one layer of a decoder."""

    def __init__(self, norm_first: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 64, dropout=0.1, batch_first=batch_first, norm_first=norm_first
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = causal(x.shape[1 if self.batch_first else 0])
        out: Tensor = self.layer(x, src_mask=mask, is_causal=True)
        return out


class Encoder(nn.Module):
    """`nn.TransformerEncoder` of two layers.

    Args:
        masked: Whether a causal mask is given at all.
        hint: Whether ``is_causal`` is said besides it.
    """

    def __init__(self, masked: bool = True, hint: bool = True) -> None:
        super().__init__()
        self.masked, self.hint = masked, hint
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 64, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )

    def forward(self, x: Tensor) -> Tensor:
        if not self.masked:
            plain: Tensor = self.encoder(x)
            return plain
        mask = causal(x.shape[1])
        out: Tensor = self.encoder(x, mask=mask, is_causal=True if self.hint else None)
        return out


class DecoderLayer(nn.Module):
    """`nn.TransformerDecoder`: causal over the tokens, everything of the memory seen by each."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)

    def forward(self, tgt: Tensor, memory: Tensor) -> Tensor:
        out: Tensor = self.decoder(tgt, memory, tgt_mask=causal(tgt.shape[1]), tgt_is_causal=True)
        return out


class TutorialAttention(nn.Module):
    """The attention of torch's tutorial on its fused op."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.dropout, self.resid_dropout = dropout, nn.Dropout(dropout)
        self.is_causal = True

    def forward(self, x: Tensor) -> Tensor:
        query_projected = self.c_attn(x)
        batch_size = query_projected.size(0)
        embed_dim = query_projected.size(2)
        head_dim = embed_dim // (HEADS * 3)
        query, key, value = query_projected.chunk(3, -1)
        query = query.view(batch_size, -1, HEADS, head_dim).transpose(1, 2)
        key = key.view(batch_size, -1, HEADS, head_dim).transpose(1, 2)
        value = value.view(batch_size, -1, HEADS, head_dim).transpose(1, 2)
        dropout, is_causal = (self.dropout, self.is_causal) if self.training else (0.0, True)
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask=None, dropout_p=dropout, is_causal=is_causal
        )
        y = y.transpose(1, 2).view(batch_size, -1, HEADS * head_dim)
        out: Tensor = self.resid_dropout(self.c_proj(y))
        return out


class PositionalEncoding(nn.Module):
    pe: Tensor

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(POSITIONS).unsqueeze(1)
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        pe = torch.zeros(POSITIONS, 1, WIDTH)
        pe[:, 0, 0::2] = torch.sin(position * rate)
        pe[:, 0, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(x + self.pe[: x.size(0)])
        return out


class TutorialModel(nn.Module):
    """The language model of torch's tutorial and of its ``word_language_model`` example.

    Tokens lie along the first axis.

    Args:
        kept: Whether the mask of the last call is kept, and made anew where the length differs.
    """

    def __init__(self, kept: bool = False) -> None:
        super().__init__()
        self.kept, self.src_mask = kept, None
        self.pos_encoder = PositionalEncoding()
        layers = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.1)
        self.transformer_encoder = nn.TransformerEncoder(layers, 2, enable_nested_tensor=False)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.linear = nn.Linear(WIDTH, VOCABULARY)

    def mask(self, tokens: int) -> Tensor:
        if not self.kept:
            return causal(tokens)
        held: Tensor | None = self.src_mask
        if held is None or held.size(0) != tokens:
            held = torch.log(torch.tril(torch.ones(tokens, tokens)))
            self.src_mask = held  # type: ignore[assignment]
        return held

    def forward(self, src: Tensor) -> Tensor:
        x = self.pos_encoder(self.embedding(src) * math.sqrt(WIDTH))
        x = self.transformer_encoder(x, self.mask(len(src) if self.kept else src.shape[0]))
        logits: Tensor = self.linear(x)
        return F.log_softmax(logits, dim=-1) if self.kept else logits
