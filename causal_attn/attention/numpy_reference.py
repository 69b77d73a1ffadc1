"""The reference once more, in numpy, so that a machine without torch has an oracle.

``causal_attn.attention.reference`` is the specification; a test holds the two against each other
in float64 and the exporter checks against the torch one. Nothing else in this package may use
this file to compute attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.attention.spec import AttentionSpec, CacheKind

__all__ = ["attention", "run_spec"]

Array = NDArray[np.floating]


# The arguments of `causal_attn.causal_attention`, one for one.
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    past: int | NDArray[np.integer] = 0,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kv_lengths: NDArray[np.integer] | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """``(output, weights)`` as `causal_attn.causal_attention`, in the dtype of the arguments.

    Shapes and the drawn mask are those of `causal_attn.causal_attention`, 4-D form. float16 is
    computed in float32 and rounded once at the end. `past` may be ``[batch]``, with `kv_lengths`.
    """
    dtype = q.dtype
    if dtype.itemsize < 4:
        q, k, v = (array.astype(np.float32) for array in (q, k, v))
    sink = None if sinks is None else sinks.astype(q.dtype)[:, None, None]
    query = np.arange(q.shape[-2])[:, None] + np.reshape(past, (-1, 1, 1, 1))
    query = query if np.ndim(past) else query[0, 0]
    key = np.arange(k.shape[-2])[None, :]
    visible = key <= query
    if window is not None:
        visible = visible & (key > query - window)
    if kv_lengths is not None:
        real = key[0] < kv_lengths[:, None]
        visible = visible & real[:, None, None, :]
        k, v = (np.where(real[:, None, :, None], array, 0).astype(q.dtype) for array in (k, v))
    if q.ndim == 4 and q.shape[1] != k.shape[1]:
        k, v = (np.repeat(array, q.shape[1] // k.shape[1], axis=1) for array in (k, v))

    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q @ np.swapaxes(k, -2, -1)) * q.dtype.type(factor)
    if softcap is not None:
        scores = q.dtype.type(softcap) * np.tanh(scores / q.dtype.type(softcap))
    scores = np.where(visible, scores, q.dtype.type(-np.inf))
    highest = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        highest = np.maximum(highest, sink)
    # A row without a visible key: its highest is -inf, and -inf - -inf would be NaN.
    shift = np.where(np.isfinite(highest), highest, 0)
    exponentials = np.exp(scores - shift)
    total = exponentials.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - shift)
    weights = exponentials / np.where(total == 0, 1, total)
    return (weights @ v).astype(dtype), weights.astype(dtype)


def run_spec(spec: AttentionSpec, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """What a package of `spec` must return for `feeds`, in the dtype of the feeds.

    Args:
        spec: The attention.
        feeds: ``q``, ``k``, ``v`` and, with a cache, ``past_key`` and ``past_value``, 4-D; with a
            static one also ``past_lengths``.

    Returns:
        ``output``, ``weights`` and, with a cache, ``present_key`` and ``present_value``.
    """
    k, v = feeds["k"], feeds["v"]
    past: int | NDArray[Any] = 0
    kv_lengths = None
    if spec.cache is CacheKind.STATIC:
        past = feeds["past_lengths"]
        kv_lengths = past + k.shape[-2]
        k = _written(feeds["past_key"], k, past)
        v = _written(feeds["past_value"], v, past)
    elif "past_key" in feeds:
        past = feeds["past_key"].shape[-2]
        k = np.concatenate([feeds["past_key"], k], axis=-2)
        v = np.concatenate([feeds["past_value"], v], axis=-2)
    output, weights = attention(
        feeds["q"], k, v, past=past, scale=spec.scale, window=spec.window, softcap=spec.softcap,
        kv_lengths=kv_lengths,
    )  # fmt: skip
    results = {"output": output, "weights": weights}
    if "past_key" in feeds:
        results |= {"present_key": k, "present_value": v}
    return results


def _written(buffer: Array, new: Array, lengths: NDArray[np.integer]) -> Array:
    """A copy of `buffer` with `new` after the first `lengths` tokens of each sequence."""
    present = buffer.copy()
    for cache, tokens, start in zip(present, new, lengths, strict=True):
        cache[:, start : start + tokens.shape[1]] = tokens
    return present
