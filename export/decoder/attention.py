"""The attention and the mask that a model of `transformers` calls while it is traced.

Both are registered under `NAME` in the library's own registries, so that windows, chunks, grouped
heads, softcap, sinks and norms of queries and keys come from the model's code. The mask is boolean
and covers everything a key may be hidden for: the future, a window, and padding on either side.
Scores are at least float32, hidden ones are ``-inf``, and a row that sees no key, as a row of left
padding does, is zeros: never NaN, which would spread through the keys and values of later layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

__all__ = ["NAME", "masked_attention", "register"]

NAME = "causal_attn"
"""What the attention is called in ``config._attn_implementation``."""


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``softmax(softcap(q k^T * scale) where visible, else -inf) v``, and the softmax.

    Args:
        query: ``[batch, heads, q_tokens, features]``.
        key: ``[batch, kv_heads, kv_tokens, features]``; `heads` is a multiple of `kv_heads`.
        value: ``[batch, kv_heads, kv_tokens, v_features]``.
        visible: bool, broadcast to ``[batch, heads, q_tokens, kv_tokens]``.
        scale: Factor on the scores.
        softcap: ``c`` in ``c * tanh(score / c)``, before the mask.
        sinks: ``[heads]``: the score of one more key for each head, whose value is zero.

    Returns:
        ``[batch, heads, q_tokens, v_features]``, zeros where no key is visible, and the weights
        ``[batch, heads, q_tokens, kv_tokens]``, zeros likewise.
    """
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    heads, kv_heads = query.shape[1], key.shape[1]
    # The heads of a group are rows of one product, so that keys and values are neither repeated
    # in memory nor read once for each of them.
    rows = query.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
    # Tensors, not Python floats: see causal_attn.attention.reference.
    scores = rows @ key.transpose(-2, -1) * query.new_full((), scale)
    scores = _of_heads(scores, heads)
    if softcap is not None:
        cap = query.new_full((), softcap)
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        column = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    # Softmax makes NaN of a row that is -inf throughout.
    weights = weights.masked_fill(~visible, 0)
    grouped = weights.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
    return _of_heads(grouped @ value, heads).to(dtype), weights.to(dtype)


def _of_heads(rows: Tensor, heads: int) -> Tensor:
    """``[batch, kv_heads, group * q_tokens, …]`` as ``[batch, heads, q_tokens, …]``."""
    apart: Tensor = rows.unflatten(2, (heads // rows.shape[1], -1))
    return apart.flatten(1, 2)


# The arguments are those that transformers hands to an attention function.
def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """What models call: tokens before heads in the result."""
    assert attention_mask is not None  # `_mask` never leaves it out
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    output, weights = masked_attention(
        query, key, value, attention_mask, scale=scale, softcap=softcap, sinks=s_aux
    )
    return output.transpose(1, 2).contiguous(), weights


def _mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """``[batch or 1, 1, q_length, kv_length]`` bool: the model's own rule, less the padding.

    `q_offset` is what is in the cache: a number, or ``[batch, 1, 1, 1]``, one for each sequence.
    """
    queries = torch.arange(q_length, device=device)[None, None, :, None] + q_offset
    keys = torch.arange(kv_length, device=device)[None, None, None, :] + kv_offset
    first = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=device)
    visible = mask_function(first, first, queries, keys)
    if attention_mask is not None:
        visible = visible & attention_mask[:, None, None, :]
    return visible


def register() -> None:
    """Make both known to the library; again is harmless."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
