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

from causal_attn.attention.call import ARGUMENTS, AttendCall, AttendResult, by_name
from causal_attn.attention.reference import CausalAttention, causal_attention, check_arguments
from causal_attn.attention.reference import attend as reference_attend

__all__ = ["ATTEND", "AsOp", "attend", "by_reference"]


# torch reads the schema of the op off this signature; nothing else has its arguments side by side.
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
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention over the cached and the new tokens.

    Args: those of `AttendCall`, which says what each is.

    Returns:
        The fields of `AttendResult`, ``[0]`` where there is none.

    Raises:
        InputError: Arguments exclude each other; see `AttendCall`.
    """
    call = AttendCall.of(
        query,
        key,
        value,
        past_key,
        past_value,
        kv_lengths,
        scale,
        window,
        softcap,
        return_weights,
        past_lengths,
        sinks,
    )
    output, weights, present_key, present_value = by_reference(call).tensors()
    # Results of a custom op may share memory neither with its inputs nor with one another.
    return output, weights.clone(), present_key.clone(), present_value.clone()


def by_reference(call: AttendCall) -> AttendResult:
    """What the op computes, as the reference says it."""
    key, value = call.key, call.value
    past: int | Tensor = call.past_tokens
    kv_lengths = call.kv_lengths
    if call.past is not None:
        past_key, past_value = call.past
        if call.past_lengths is None:
            key = torch.cat([past_key, key], dim=2)
            value = torch.cat([past_value, value], dim=2)
        else:
            past, kv_lengths = call.past_lengths, call.past_lengths + call.query.shape[2]
            key = _written(past_key, key, call.past_lengths)
            value = _written(past_value, value, call.past_lengths)
    output, weights = reference_attend(
        call.query,
        key,
        value,
        past=past,
        scale=call.scale,
        window=call.window,
        softcap=call.softcap,
        kv_lengths=kv_lengths,
        sinks=call.sinks,
    )
    return AttendResult(
        output=output,
        weights=weights if call.return_weights else None,
        present_key=None if call.past is None else key,
        present_value=None if call.past is None else value,
    )


def _written(buffer: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
    """A copy of `buffer` in which `new` follows the first `lengths` tokens of each sequence."""
    slots = lengths[:, None] + torch.arange(new.shape[2], device=new.device)
    return buffer.scatter(2, slots[:, None, :, None].expand(new.shape), new)


@attend.register_fake
def _shapes(*arguments: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Results of the right shapes and dtypes, without values."""
    call = AttendCall.of(*arguments, **named)
    rows = call.query.shape[:3]

    def present(new: Tensor) -> Tensor | None:
        if call.past is None:
            return None
        return new.new_empty(*new.shape[:2], call.kv_tokens, new.shape[3])

    return AttendResult(
        output=call.query.new_empty(*rows, call.value.shape[3]),
        weights=call.query.new_empty(*rows, call.kv_tokens) if call.return_weights else None,
        present_key=present(call.key),
        present_value=present(call.value),
    ).tensors()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given = by_name(inputs, {})
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    ctx.names = tuple(tensors)
    ctx.save_for_backward(*tensors.values())
    ctx.options = {name: value for name, value in given.items() if name not in tensors}


def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients through the reference, which is run again: nothing but the inputs is kept."""
    given = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
    floats = {name: tensor for name, tensor in given.items() if tensor.is_floating_point()}

    def run(varied: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return by_reference(AttendCall(**{**ctx.options, **given, **varied})).tensors()

    pull_back = torch.func.vjp(run, floats)[1]
    (found,) = pull_back(gradients)
    return tuple(found.get(name) for name in ARGUMENTS)


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
    q: Tensor, k: Tensor, v: Tensor, *, past: int = 0, **options: Any
) -> CausalAttention:
    """`causal_attention`; its options but `past` are arguments of the op, by the same names."""
    check_arguments(q, k, v, past=past, **options)
    flat = q.dim() == 2
    if flat:
        q, k, v = (tensor[None, None] for tensor in (q, k, v))
    # A length that is traced is not compared with 0: that would fix it.
    if isinstance(past, torch.SymInt) or past:
        options |= {"past_key": k[:, :, :past], "past_value": v[:, :, :past]}
        k, v = k[:, :, past:], v[:, :, past:]
    output, weights, _, _ = attend(q, k, v, **options)
    if flat:
        output, weights = output[0, 0], weights[0, 0]
    return CausalAttention(output, weights)
