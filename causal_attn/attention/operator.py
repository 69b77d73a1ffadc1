"""``torch.ops.causal_attn.attend``: the one op that torch.export sees for causal attention.

Its eager kernel is the reference, so a module that calls it computes what the specification says.
An exporter replaces it, whole, by one of the forms in ``causal_attn.export.forms``; nothing has
to be recognised in a traced graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from causal_attn.attention.reference import CausalAttention, causal_attention, check_arguments
from causal_attn.attention.reference import attend as reference_attend
from causal_attn.errors import InputError

__all__ = ["ATTEND", "AsOp", "attend", "decomposition"]


@torch.library.custom_op("causal_attn::attend", mutates_args=())
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    return_weights: bool = True,
    past_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention over the cached and the new tokens.

    Args:
        query: ``[batch, heads, q_tokens, features]``.
        key: Keys of the new tokens, ``[batch, kv_heads, q_tokens, features]``.
        value: Values of the new tokens, ``[batch, kv_heads, q_tokens, v_features]``.
        past_key: Keys of earlier calls, ``[batch, kv_heads, past_tokens, features]``, zero
            tokens allowed; with `past_value` or not at all. With `past_lengths` a buffer instead,
            ``[batch, kv_heads, capacity, features]``.
        past_value: ``[batch, kv_heads, past_tokens, v_features]``.
        kv_lengths: ``[batch]`` int64, see `causal_attn.causal_attention`.
        scale: Factor on the scores; default ``1 / sqrt(features)``.
        window: Tokens a query sees, itself included.
        softcap: ``c`` in ``c * tanh(score / c)``, before the mask.
        return_weights: Whether the second result is filled.
        past_lengths: ``[batch]`` int64, with a past and without `kv_lengths`: the past is a buffer
            of which each sequence has filled so many tokens. The new ones are written after them
            and must fit. What lies beyond is not seen, whatever it holds (NaN and inf too).

    Returns:
        ``output [batch, heads, q_tokens, v_features]``,
        ``weights [batch, heads, q_tokens, past_tokens + q_tokens]`` or ``[0]``,
        ``present_key`` and ``present_value`` (past and new together) or ``[0]`` without a past.
        With `past_lengths` the last dim of ``weights`` is ``capacity``, and the presents are the
        buffers with the new tokens in them.
    """
    output, weights, present_key, present_value = decomposition(
        query, key, value, past_key, past_value, kv_lengths, scale, window, softcap,
        return_weights, past_lengths,
    )  # fmt: skip
    # Results of a custom op may share memory neither with its inputs nor with one another.
    return output, weights.clone(), present_key.clone(), present_value.clone()


def decomposition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    return_weights: bool = True,
    past_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The op as the reference says it: the arguments and results of `attend`."""
    empty = query.new_empty(0)
    present_key = present_value = empty
    past: int | Tensor = 0
    if past_lengths is not None:
        if past_key is None or past_value is None or kv_lengths is not None:
            raise InputError("`past_lengths` must come with a past and without `kv_lengths`.")
        past, kv_lengths = past_lengths, past_lengths + query.shape[-2]
        key = present_key = _written(past_key, key, past_lengths)
        value = present_value = _written(past_value, value, past_lengths)
    elif past_key is not None and past_value is not None:
        past = past_key.shape[-2]
        key = present_key = torch.cat([past_key, key], dim=-2)
        value = present_value = torch.cat([past_value, value], dim=-2)
    output, weights = reference_attend(
        query,
        key,
        value,
        past=past,
        scale=scale,
        window=window,
        softcap=softcap,
        kv_lengths=kv_lengths,
    )
    return output, weights if return_weights else empty, present_key, present_value


def _written(buffer: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
    """A copy of `buffer` in which `new` follows the first `lengths` tokens of each sequence."""
    slots = lengths[:, None] + torch.arange(new.shape[2], device=new.device)
    return buffer.scatter(2, slots[:, None, :, None].expand(new.shape), new)


@attend.register_fake
def _shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    return_weights: bool = True,
    past_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, q_tokens, _ = query.shape
    past = 0 if past_key is None else past_key.shape[-2]
    kv_tokens = past if past_lengths is not None else past + key.shape[-2]

    def present(new: Tensor) -> Tensor:
        if past_key is None:
            return new.new_empty(0)
        return new.new_empty(*new.shape[:2], kv_tokens, new.shape[3])

    return (
        query.new_empty(batch, heads, q_tokens, value.shape[3]),
        query.new_empty(batch, heads, q_tokens, kv_tokens)
        if return_weights
        else query.new_empty(0),
        present(key),
        present(value),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # past_lengths came to the arguments last: beside the other tensors here.
    tensors, ctx.options = (*inputs[:6], inputs[10]), inputs[6:10]
    ctx.present = [tensor is not None for tensor in tensors]
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None))


def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients through the decomposition, which is run again: nothing but the inputs is kept."""
    saved = iter(ctx.saved_tensors)
    *floats, kv_lengths, past_lengths = (next(saved) if there else None for there in ctx.present)
    used = [index for index, tensor in enumerate(floats) if tensor is not None]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        filled: list[Any] = list(floats)
        for index, tensor in zip(used, given, strict=True):
            filled[index] = tensor
        arguments: list[Any] = [*filled, kv_lengths, *ctx.options, past_lengths]
        return decomposition(*arguments)

    pull_back = torch.func.vjp(run, *(floats[index] for index in used))[1]
    found = dict(zip(used, pull_back(gradients), strict=True))
    return *(found.get(index) for index in range(5)), *(None,) * (2 + len(ctx.options))


attend.register_autograd(_backward, setup_context=_save)

ATTEND = torch.ops.causal_attn.attend.default


class AsOp(TorchFunctionMode):
    """Inside this block `causal_attn.causal_attention` is one call of the op, not its parts.

    For exporters: what is traced inside can be written in any form.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        run = _through_op if func is causal_attention else func
        return run(*args, **(kwargs or {}))


def _through_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past: int = 0,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kv_lengths: Tensor | None = None,
) -> CausalAttention:
    check_arguments(
        q, k, v, past=past, scale=scale, window=window, softcap=softcap, kv_lengths=kv_lengths
    )
    flat = q.dim() == 2
    if flat:
        q, k, v = (tensor[None, None] for tensor in (q, k, v))
    past_key = past_value = None
    # A length that is traced is not compared with 0: that would fix it.
    if isinstance(past, torch.SymInt) or past:
        past_key, past_value = k[:, :, :past], v[:, :, :past]
        k, v = k[:, :, past:], v[:, :, past:]
    output, weights, _, _ = attend(
        q, k, v, past_key, past_value, kv_lengths, scale, window, softcap, True
    )
    if flat:
        output, weights = output[0, 0], weights[0, 0]
    return CausalAttention(output, weights)
