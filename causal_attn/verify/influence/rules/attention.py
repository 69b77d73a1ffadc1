"""ONNX ``Attention`` (opset 23 to 25) and rotary embedding, composed of the rules for their parts.

The operator masks with ``-inf`` by its definition. ONNX Runtime's CPU kernel for opsets 23 and 24
adds the lowest finite number of the dtype instead (1.32.0), so there the mask hides only while
scores stay within half the range of the dtype, and the proof says so. Opset 25 is expanded into
primitive operators and has no such bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from causal_attn.verify.influence.bounds.mixing import score_size
from causal_attn.verify.influence.bounds.step import Step
from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, Mode, rule
from causal_attn.verify.influence.rules.combine import add, multiply, opaque, select
from causal_attn.verify.influence.rules.movement import (
    concat,
    insert_axes,
    repeat,
    reshape,
    transpose,
)
from causal_attn.verify.influence.rules.products import matmul
from causal_attn.verify.influence.rules.reductions import join_axes
from causal_attn.verify.influence.rules.softmax import softmax
from causal_attn.verify.influence.tensor import Array, Tensor, constant, reduce_bits, unknown

__all__ = ["attend", "largest_score", "lowest", "merge_heads", "split_heads", "written_mask"]


def lowest(dtype: np.dtype[Any]) -> float:
    """The lowest finite number of a float dtype."""
    if dtype.name == "bfloat16":
        return -3.3895313892515355e38
    return float(np.finfo(dtype.type).min)


def split_heads(tensor: Tensor, heads: int) -> Tensor:
    """``[batch, tokens, heads * features]`` as ``[batch, heads, tokens, features]``."""
    if tensor.rank == 4:
        return tensor
    batch, tokens, width = tensor.shape
    if not heads or width % heads:
        raise DataDependent(f"its width {width} is not split by {heads} heads")
    return transpose(reshape(tensor, (batch, tokens, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(tensor: Tensor) -> Tensor:
    """``[batch, heads, tokens, features]`` as ``[batch, tokens, heads * features]``."""
    batch, heads, tokens, width = tensor.shape
    return reshape(transpose(tensor, (0, 2, 1, 3)), (batch, tokens, heads * width))


def written_mask(allowed: Array, filler: float, like: Tensor) -> Tensor:
    """A mask to add: 0 where `allowed`, `filler` elsewhere."""
    values = np.where(allowed, 0.0, filler).astype(like.dtype)
    return constant(values, len(like.bits))


def attend(
    mode: Mode,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Sequence[Tensor],
    empty_rows: Array | None = None,
    largest: float = math.inf,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled dot product attention with masks that are added to the scores.

    Args:
        mode: Decides about finite masks.
        query: ``[batch, heads, q_tokens, features]``.
        key: ``[batch, kv_heads, kv_tokens, features]``.
        value: ``[batch, kv_heads, kv_tokens, v_features]``.
        masks: Broadcastable to ``[batch, heads, q_tokens, kv_tokens]``.
        empty_rows: Rows that see no key and whose weights are zero.
        largest: Bound on the magnitude of scores.

    Returns:
        Output, scores without the masks, weights.
    """
    heads = query.shape[1]
    if heads % key.shape[1]:
        raise DataDependent(f"its {heads} query heads do not share {key.shape[1]} key heads")
    key = repeat(key, 1, heads // key.shape[1])
    value = repeat(value, 1, heads // value.shape[1])
    scores = masked = matmul(query, transpose(key, (0, 1, 3, 2)))
    for mask in masks:
        masked = add(masked, mask)
    weights = softmax(mode, masked, -1, empty=0.0, largest=largest)
    if empty_rows is not None and empty_rows.any():
        weights = multiply(
            weights, constant((~empty_rows).astype(weights.dtype), len(weights.bits))
        )
    return matmul(weights, value), scores, weights


def _key_mask(call: Call, mask: Tensor, total: int, filler: float) -> tuple[Tensor, Array | None]:
    """The mask input as something to add, and what it allows where it is a known bool mask."""
    if mask.shape[-1] != total and (mask.shape[-1] != 1 or call.opset >= 25):
        short = total - mask.shape[-1]
        if short < 0:
            raise DataDependent("its mask is longer than its keys")
        closed = False if mask.dtype == bool else -np.inf
        shape = (*mask.shape[:-1], short)
        mask = concat([mask, call.constant(np.full(shape, closed), mask.dtype)], -1)
    if mask.dtype != bool:
        return mask, None
    dtype = call.tensor(0).dtype
    opened, closed_mask = call.constant(0.0, dtype), call.constant(filler, dtype)
    return select(mask, opened, closed_mask), mask.value


@rule("Attention")
def _attention(call: Call) -> list[Tensor]:
    query = split_heads(call.tensor(0), call.attr("q_num_heads", 0))
    key = split_heads(call.tensor(1), call.attr("kv_num_heads", 0))
    value = split_heads(call.tensor(2), call.attr("kv_num_heads", 0))
    past_tokens = 0
    if (past_key := call.optional(4)) is not None:
        past_tokens = past_key.shape[2]
        key = concat([past_key, key], 2)
        value = concat([call.tensor(5), value], 2)
    rows, total = query.shape[2], key.shape[2]
    filler = -np.inf if call.opset >= 25 else lowest(query.dtype)
    allowed: Array = np.ones((1, 1, rows, total), bool)
    offset: Array = np.full((1, 1, 1, 1), past_tokens)
    columns = np.arange(total).reshape(1, 1, 1, -1)
    if call.has(6):
        lengths = call.values(6).reshape(-1, 1, 1, 1)
        allowed = allowed & (columns < lengths)
        offset = lengths - rows if past_key is None else offset
    places = np.arange(rows).reshape(1, 1, -1, 1) + offset
    if call.attr("is_causal", 0):
        allowed = allowed & (columns <= places)
    left, right = call.attr("left_window_size", -1), call.attr("right_window_size", -1)
    if left >= 0:
        allowed = allowed & (columns >= places - left)
    if right >= 0:
        allowed = allowed & (columns <= places + right)
    masks = [] if allowed.all() else [written_mask(allowed, filler, query)]
    if (mask := call.optional(3)) is not None:
        extra, also_allowed = _key_mask(call, mask, total, filler)
        masks.append(extra)
        if also_allowed is not None:
            allowed = allowed & also_allowed
    empty_rows = np.asarray(~allowed.any(-1, keepdims=True))
    largest = largest_score(call)
    if call.has(3) and call.tensor(3).dtype != bool:
        largest += call.score(3)
    output, scores, weights = attend(call.mode, query, key, value, masks, empty_rows, largest)
    shown = {0: scores, 3: weights}.get(
        call.attr("qk_matmul_output_mode", 0), opaque([scores, *masks])
    )
    return [merge_heads(output) if call.tensor(0).rank == 3 else output, key, value, shown]


def largest_score(call: Call) -> float:
    """Bound on the scores of an attention operator, where extents are followed."""
    if not call.extents:
        return math.inf
    step = Step(call.node, call.opset, call.attributes, call.inputs, call.extents, ())
    try:
        return score_size(step)
    except (LookupError, ValueError, TypeError, ArithmeticError):
        # Inputs whose heads do not fit: the rule of the operator says so.
        return math.inf


def rotary(tensor: Tensor, positions: Tensor | None, caches: Sequence[Tensor]) -> Tensor:
    """Features of a token are mixed with one another and with its position, nothing else.

    Args:
        tensor: ``[batch, heads, tokens, features]`` or ``[batch, tokens, width]``.
        positions: ``[batch, tokens]``; ``None``: the caches hold a row for each token.
        caches: Cosines and sines, ``[positions, features]`` or ``[batch, tokens, features]``.
    """
    parts = [join_axes(tensor, [tensor.rank - 1])]
    between = [1, 3] if tensor.rank == 4 else [2]
    if positions is not None:
        row = insert_axes(positions, between)
        parts.append(unknown(row.shape, tensor.dtype, row.bits))
    for cache in caches:
        if not any(plane.any() for plane in cache.bits):
            continue
        if positions is None:
            row = reshape(cache, (1,) * (3 - cache.rank) + cache.shape)
            row = unknown((*row.shape[:2], 1), tensor.dtype, reduce_bits(row, [2]))
            parts.append(insert_axes(row, [1]) if tensor.rank == 4 else row)
        else:
            planes = reduce_bits(cache, range(cache.rank))
            parts.append(unknown((), tensor.dtype, [plane.reshape(()) for plane in planes]))
    return opaque(parts)


@rule("RotaryEmbedding")
def _rotary(call: Call) -> list[Tensor]:
    return [rotary(call.tensor(0), call.optional(3), [call.tensor(1), call.tensor(2)])]


@rule("RotaryEmbedding", domain=MICROSOFT)
def _rotary_contrib(call: Call) -> list[Tensor]:
    positions = call.tensor(1)
    if positions.size == 1:
        positions = reshape(positions, (1, 1))
    return [rotary(call.tensor(0), positions, [call.tensor(2), call.tensor(3)])]
