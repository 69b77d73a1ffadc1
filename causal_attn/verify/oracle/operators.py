"""Operators that onnx's reference evaluator lacks or computes wrongly, in plain numpy.

They are for the float64 oracle only and follow what ONNX Runtime's documentation of its contrib
operators says, at the dtype of their inputs. Options that no graph at hand uses are refused: an
oracle must not guess.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from causal_attn.verify.oracle.block_quantized import GatherBlockQuantized, MatMulNBits

__all__ = ["EVALUATOR_OPS"]

Array = NDArray[Any]

MICROSOFT = "com.microsoft"


class GatherElements(OpRun):
    """ONNX's own; onnx 1.23.2 computes it with ``numpy.choose``, which ends at 64 rows."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
        axis = axis or 0
        size = data.shape[axis]
        places = np.where(indices < 0, indices + size, indices)
        # Other axes may be longer than the indices reach.
        reach = tuple(
            slice(None) if at == axis % data.ndim else slice(0, dim)
            for at, dim in enumerate(indices.shape)
        )
        return (np.take_along_axis(data[reach], places, axis),)


class SimplifiedLayerNormalization(OpRun):
    """Root mean square norm, which ONNX Runtime keeps in the default domain."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        axis: int | None = None,
        epsilon: float | None = None,
        stash_type: int | None = None,
    ) -> tuple[Array]:
        return (_rms(x, scale, epsilon, -1 if axis is None else axis),)


class SkipSimplifiedLayerNormalization(OpRun):
    """The norm of a sum, and the sum."""

    op_domain = MICROSOFT

    def _run(
        self,
        x: Array,
        skip: Array,
        gamma: Array,
        bias: Array | None = None,
        epsilon: float | None = None,
    ) -> tuple[Array, Array, Array, Array]:
        total = x + skip if bias is None else x + skip + bias
        nothing = np.zeros(0, x.dtype)
        return _rms(total, gamma, epsilon, -1), nothing, nothing, total


class GroupQueryAttention(OpRun):
    """Causal attention with a cache and, if asked for, rotary embedding inside.

    Query ``[batch, tokens, heads * size]`` or packed with key and value; the past
    ``[batch, kv_heads, past, size]`` is full up to ``seqlens_k + 1 - tokens``; up to
    ``seqlens_k + 1`` where new keys and values are of no token.
    """

    op_domain = MICROSOFT

    # The inputs and attributes are those of the operator's schema.
    def _run(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        seqlens_k: Array | None = None,
        total_sequence_length: Array | None = None,
        cos_cache: Array | None = None,
        sin_cache: Array | None = None,
        position_ids: Array | None = None,
        attention_bias: Array | None = None,
        head_sink: Array | None = None,
        *others: Array | None,
        num_heads: int = 0,
        kv_num_heads: int = 0,
        scale: float | None = None,
        softcap: float | None = None,
        local_window_size: int | None = None,
        do_rotary: int | None = None,
        rotary_interleaved: int | None = None,
        causal: int | None = None,
        **unknown: Any,
    ) -> tuple[Array, Array, Array]:
        others = (position_ids, attention_bias, *others)
        if seqlens_k is None or any(item is not None for item in others) or any(unknown.values()):
            raise NotImplementedError("GroupQueryAttention with options that are not known here")
        batch, tokens = query.shape[:2]
        if key is None or value is None:
            size = query.shape[2] // (num_heads + 2 * kv_num_heads)
            ends = (num_heads * size, (num_heads + kv_num_heads) * size)
            query, key, value = np.split(query, ends, axis=2)
        q = _heads(query, num_heads)
        k, v = _heads(key, kv_num_heads), _heads(value, kv_num_heads)
        lengths = seqlens_k.reshape(-1).astype(np.int64) + 1
        held = 0 if past_key is None else past_key.shape[2]
        room = max(held, int(lengths.max()))
        keys, values = (np.zeros((*k.shape[:2], room, k.shape[3]), k.dtype) for _ in range(2))
        output = np.zeros_like(q)
        for row in range(batch):
            past = max(int(lengths[row]) - tokens, 0)
            places = np.arange(past, past + tokens)
            q_row, k_row = q[row], k[row]
            if do_rotary:
                q_row, k_row = (
                    _rotated(part, places, cos_cache, sin_cache, bool(rotary_interleaved))
                    for part in (q_row, k_row)
                )
            if past_key is not None and past_value is not None:
                keys[row, :, :held], values[row, :, :held] = past_key[row], past_value[row]
            if k.shape[2]:
                keys[row, :, places], values[row, :, places] = (
                    np.moveaxis(part, 1, 0) for part in (k_row, v[row])
                )
            last = places if causal is None or causal else np.full_like(places, places[-1])
            visible = np.arange(room)[None, :] <= last[:, None]
            if local_window_size is not None and local_window_size > 0:
                visible &= np.arange(room)[None, :] > places[:, None] - local_window_size
            factor = scale or 1 / np.sqrt(q.shape[3])
            output[row] = _attended(
                q_row, keys[row], values[row], visible, factor, softcap, head_sink
            )
        return np.moveaxis(output, 1, 2).reshape(batch, tokens, -1), keys, values


EVALUATOR_OPS: tuple[type[OpRun], ...] = (
    GatherBlockQuantized,
    GatherElements,
    GroupQueryAttention,
    MatMulNBits,
    SimplifiedLayerNormalization,
    SkipSimplifiedLayerNormalization,
)


def _rms(x: Array, scale: Array, epsilon: float | None, axis: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = np.mean(x * x, axis=axes, keepdims=True)
    result: Array = x / np.sqrt(mean + (1e-5 if epsilon is None else epsilon)) * scale
    return result.astype(x.dtype)


def _heads(x: Array, heads: int) -> Array:
    """``[batch, tokens, heads * size] -> [batch, heads, tokens, size]``."""
    return np.moveaxis(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 2, 1)


def _rotated(
    x: Array, places: Array, cos_cache: Array | None, sin_cache: Array | None, interleaved: bool
) -> Array:
    if cos_cache is None or sin_cache is None:
        raise NotImplementedError("rotary embedding without its tables")
    cos, sin = cos_cache[places], sin_cache[places]
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = np.split(turned, 2, axis=-1)
    parts = (first * cos - second * sin, first * sin + second * cos)
    if interleaved:
        joined = np.stack(parts, axis=-1).reshape(turned.shape)
    else:
        joined = np.concatenate(parts, axis=-1)
    return np.concatenate([joined, rest], axis=-1).astype(x.dtype)


def _attended(
    q: Array,
    k: Array,
    v: Array,
    visible: Array,
    scale: float,
    softcap: float | None,
    sinks: Array | None,
) -> Array:
    groups = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, groups, axis=0), np.repeat(v, groups, axis=0)
    scores = (q @ np.swapaxes(k, 1, 2)) * q.dtype.type(scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(visible, scores, -np.inf)
    sink = np.float64(-np.inf) if sinks is None else sinks[:, None, None]
    highest = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - highest)
    result: Array = (weights / total) @ v
    return result.astype(q.dtype)
