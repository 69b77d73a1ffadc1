"""The specification: causal attention as one torch function, read top to bottom.

    output, weights = causal_attention(q, k, v)

    scores  = q @ k.T / sqrt(features)          [q_tokens, kv_tokens]
    scores  = softcap * tanh(scores / softcap)  only if a softcap is given
    scores  = -inf where a key may not be seen
    weights = softmax(scores) over keys         and over a sink, if there are sinks
    output  = weights @ v                       [q_tokens, features]

Why the scores are divided by sqrt(features): a score is a sum of ``features`` products. If the
entries of q and k are unrelated, with mean 0 and variance 1, each product has variance 1 and the
sum has variance ``features``, so its spread grows like sqrt(features). Undivided, wide heads would
push softmax to one-hot rows whose gradient vanishes (Vaswani et al., 2017, section 3.2.1,
https://arxiv.org/abs/1706.03762).

Where this differs from other definitions: softcap comes before the mask (ONNX Attention; torch
2.13's eager ``torch.onnx.ops.attention`` masks first and leaks the future); a row that sees no key
is zeros (ONNX opset 23 and torch SDPA; below, a mean of v or NaN); lengths that differ are never
aligned silently, the caller says ``past``.

This file imports torch and nothing of the exporter. Speed is not its business.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from causal_attn.attention.spec import require_positive
from causal_attn.errors import InputError, SpecError

__all__ = ["CausalAttention", "attend", "causal_attention", "visibility"]


class CausalAttention(NamedTuple):
    """What `causal_attention` returns.

    Attributes:
        output: ``[tokens, features]`` or ``[batch, heads, q_tokens, v_features]``, dtype of q.
        weights: ``[tokens, tokens]`` or ``[batch, heads, q_tokens, kv_tokens]``, dtype of q. Rows
            sum to 1; entries of keys that may not be seen are exactly 0.
    """

    output: Tensor
    weights: Tensor


# Nine arguments: this signature is what users call, and it has no object to learn first.
def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past: int = 0,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kv_lengths: Tensor | None = None,
    sinks: Tensor | None = None,
) -> CausalAttention:
    """Attend to the present and the past, never to the future.

    Query ``i`` sees keys ``0 … past + i``. For 3 new tokens, without and with 2 in the cache::

        past=0   k0 k1 k2         past=2   k0 k1 k2 k3 k4
            q0    1  0  0             q0    1  1  1  0  0
            q1    1  1  0             q1    1  1  1  1  0
            q2    1  1  1             q2    1  1  1  1  1

    ``window=2`` keeps the token itself and one before it (Mistral's rule,
    https://arxiv.org/abs/2310.06825)::

        past=0   k0 k1 k2         past=2   k0 k1 k2 k3 k4
            q0    1  0  0             q0    0  1  1  0  0
            q1    1  1  0             q1    0  0  1  1  0
            q2    0  1  1             q2    0  0  0  1  1

    Args:
        q: Queries, ``[tokens, features]`` or ``[batch, heads, q_tokens, features]``, floating.
        k: Keys of the past and of the new tokens, ``[tokens, features]`` or
            ``[batch, kv_heads, kv_tokens, features]`` with ``kv_tokens = past + q_tokens``;
            ``kv_heads`` divides ``heads`` (each key/value head serves ``heads / kv_heads``
            neighbouring query heads, https://arxiv.org/abs/2305.13245).
        v: Values, as `k`; in the 4-D form their features may differ from those of `k`.
        past: Tokens that came before query 0.
        scale: Factor on the scores, > 0. Default ``1 / sqrt(features)``.
        window: Tokens a query sees, itself included, >= 1. Default: all of the past.
        softcap: ``c`` in ``c * tanh(score / c)``, > 0, applied before the mask. Default: off.
        kv_lengths: ``[batch]`` int64: keys from this index on are padding and not seen by any
            query of that sequence, whatever they hold (NaN and inf too). Default: all are real.
        sinks: ``[heads]`` floating: for each query head the score of one more key, whose value is
            zero, so that a row of weights sums to less than 1 (GPT-OSS,
            https://arxiv.org/abs/2508.10925). Scale, softcap and mask leave it as it is. Default:
            none.

    Returns:
        `CausalAttention`. Scores and softmax are computed in at least float32, whatever the dtype.
        A row that sees no key is zeros in both.

    Raises:
        InputError: A tensor's rank, shape, dtype or device is not as above.
        SpecError: `scale`, `window` or `softcap` is out of range.

    Example:
        >>> q = k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> v = torch.tensor([[2.0, 0.0], [0.0, 4.0], [2.0, 2.0]])
        >>> output, weights = causal_attention(q, k, v)
        >>> weights
        tensor([[1.0000, 0.0000, 0.0000],
                [0.3302, 0.6698, 0.0000],
                [0.2483, 0.2483, 0.5035]])
        >>> output
        tensor([[2.0000, 0.0000],
                [0.6605, 2.6790],
                [1.5035, 2.0000]])
    """
    # torch's own protocol for a function that a mode may replace: the exporter puts one op here.
    if has_torch_function((q, k, v)):
        replaced: CausalAttention = handle_torch_function(
            causal_attention, (q, k, v), q, k, v, past=past, scale=scale, window=window,
            softcap=softcap, kv_lengths=kv_lengths, sinks=sinks,
        )  # fmt: skip
        return replaced
    check_arguments(
        q, k, v, past=past, scale=scale, window=window, softcap=softcap, kv_lengths=kv_lengths,
        sinks=sinks,
    )  # fmt: skip
    return attend(
        q, k, v, past=past, scale=scale, window=window, softcap=softcap, kv_lengths=kv_lengths,
        sinks=sinks,
    )  # fmt: skip


# The arguments of `causal_attention`, one for one.
def check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past: int = 0,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kv_lengths: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Refuse what `causal_attention` refuses: the same arguments, the same errors."""
    _validate(q, k, v, past, kv_lengths)
    _validate_sinks(q, sinks)
    require_positive("scale", scale)
    require_positive("softcap", softcap)
    if window is not None and (
        not isinstance(window, int) or isinstance(window, bool) or window < 1
    ):
        raise SpecError(f"`window` must be an integer >= 1 or None, got {window!r}.")


# The arguments of `causal_attention`, one for one.
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past: int | Tensor = 0,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kv_lengths: Tensor | None = None,
    sinks: Tensor | None = None,
) -> CausalAttention:
    """`causal_attention` without the checks of its arguments: what torch.export traces.

    `past` may differ between sequences: ``[batch]``, beside `kv_lengths`, with any number of keys.
    """
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()

    visible = visibility(q, k, past=past, window=window, kv_lengths=kv_lengths)
    if kv_lengths is not None:
        # 0 * NaN is NaN: what lies in padding must not reach the products at all.
        real = torch.arange(k.shape[-2], device=k.device) < kv_lengths[:, None]
        k = k.masked_fill(~real[:, None, :, None], 0)
        v = v.masked_fill(~real[:, None, :, None], 0)
    if q.dim() == 4 and q.shape[1] != k.shape[1]:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

    scores = q @ k.transpose(-2, -1)
    if scale is None:
        # A tensor of q's dtype: a Python float would reach ONNX as float32, and float64 attention
        # would be right to 1e-8 only.
        scores = scores / torch.full((), q.shape[-1], dtype=q.dtype, device=q.device).sqrt()
    else:
        scores = scores * torch.full((), scale, dtype=q.dtype, device=q.device)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    if kv_lengths is not None:
        # Only padding can leave a row without a single key: softmax made it NaN.
        weights = weights.masked_fill(~visible, 0)
    return CausalAttention((weights @ v).to(dtype), weights.to(dtype))


def visibility(
    q: Tensor,
    k: Tensor,
    *,
    past: int | Tensor = 0,
    window: int | None = None,
    kv_lengths: Tensor | None = None,
) -> Tensor:
    """Which key each query sees: bool ``[q_tokens, kv_tokens]``, True where it does.

    With `kv_lengths`, or a `past` that is ``[batch]``, the shape is
    ``[batch, 1, q_tokens, kv_tokens]``. Arguments are those of `causal_attention`, which draws the
    matrix; only the lengths of `q` and `k` are read.
    """
    if isinstance(past, Tensor):
        past = past[:, None, None, None]
    query = torch.arange(q.shape[-2], device=q.device)[:, None] + past
    key = torch.arange(k.shape[-2], device=q.device)[None, :]
    visible = key <= query
    if window is not None:
        visible = visible & (key > query - window)
    if kv_lengths is not None:
        visible = visible & (key < kv_lengths[:, None, None, None])
    return visible


def _validate(q: Tensor, k: Tensor, v: Tensor, past: int, kv_lengths: Tensor | None) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise InputError(f"`{name}` must be a torch.Tensor, got {type(tensor).__name__}.")
        if not tensor.is_floating_point():
            raise InputError(
                f"`{name}` must be floating point, got {tensor.dtype}. Convert it first."
            )
        if tensor.dim() not in (2, 4):
            raise InputError(
                f"`{name}` must be [tokens, features] or [batch, heads, tokens, features], "
                f"got shape {list(tensor.shape)}."
            )
        if (tensor.dim(), tensor.dtype, tensor.device) != (q.dim(), q.dtype, q.device):
            raise InputError(
                f"`{name}` must have the rank, dtype and device of `q` ({q.dim()}-D, {q.dtype}, "
                f"{q.device}), got {tensor.dim()}-D, {tensor.dtype}, {tensor.device}."
            )
        if 0 in tensor.shape:
            raise InputError(
                f"`{name}` must have no empty dim, got shape {list(tensor.shape)}: attention over "
                "zero tokens is not defined."
            )
    # A length of a traced tensor has no sign yet; that k has past + q_tokens still holds below.
    traced = isinstance(past, torch.SymInt)
    if not traced and (not isinstance(past, int) or isinstance(past, bool) or past < 0):
        raise InputError(f"`past` must be an integer >= 0, got {past!r}.")
    if k.shape[:-1] != v.shape[:-1] or (q.dim() == 2 and k.shape != v.shape):
        raise InputError(
            f"`v` must have the shape of `k`, got {list(v.shape)} for {list(k.shape)}."
        )
    if q.shape[-1] != k.shape[-1]:
        raise InputError(
            f"`k` must have the features of `q`, got {k.shape[-1]} for {q.shape[-1]}."
        )
    if k.shape[-2] != past + q.shape[-2]:
        raise InputError(
            f"`k` must have past + q_tokens = {past} + {q.shape[-2]} tokens, got {k.shape[-2]}. "
            "Say how many tokens came before with past=…; lengths are never aligned silently."
        )
    if q.dim() == 4:
        if q.shape[0] != k.shape[0]:
            raise InputError(f"`k` must have the batch of `q`, {q.shape[0]}, got {k.shape[0]}.")
        if q.shape[1] % k.shape[1]:
            raise InputError(
                f"`k` must have a number of heads that divides those of `q`, {q.shape[1]}, "
                f"got {k.shape[1]}."
            )
    if kv_lengths is not None:
        if not isinstance(kv_lengths, Tensor):
            raise InputError(
                f"`kv_lengths` must be a torch.Tensor, got {type(kv_lengths).__name__}. "
                "Make it with torch.tensor([…])."
            )
        if q.dim() != 4 or list(kv_lengths.shape) != [q.shape[0]]:
            raise InputError(
                "`kv_lengths` must be [batch], beside 4-D q, k and v, "
                f"got shape {list(kv_lengths.shape)} for q of {list(q.shape)}."
            )
        if kv_lengths.dtype not in (torch.int32, torch.int64):
            raise InputError(
                f"`kv_lengths` must be int32 or int64, got {kv_lengths.dtype}: it counts keys, "
                "it is not a mask."
            )
        if kv_lengths.device != q.device:
            raise InputError(
                f"`kv_lengths` must be on the device of `q`, {q.device}, got {kv_lengths.device}."
            )


def _validate_sinks(q: Tensor, sinks: Tensor | None) -> None:
    if sinks is None:
        return
    if not isinstance(sinks, Tensor):
        raise InputError(f"`sinks` must be a torch.Tensor, got {type(sinks).__name__}.")
    if q.dim() != 4 or list(sinks.shape) != [q.shape[1]]:
        raise InputError(
            "`sinks` must be [heads], beside 4-D q, k and v, "
            f"got shape {list(sinks.shape)} for q of {list(q.shape)}."
        )
    if (sinks.dtype, sinks.device) != (q.dtype, q.device):
        raise InputError(
            f"`sinks` must have the dtype and device of `q` ({q.dtype}, {q.device}), got "
            f"{sinks.dtype}, {sinks.device}."
        )
