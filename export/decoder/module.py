"""A model of `transformers` as a function of tensors: what is traced, and what it is held against.

Both call the same model. `Decoder` runs it with the attention of `causal_attn.export.decoder`,
`OwnDecoder` with the attention that the library itself has for it; nothing else differs, and the
float64 run of the second is the oracle of the first. Models whose attention asks no registry
(BLOOM, Falcon, MPT) run with their own in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from causal_attn.export.decoder import attention, experts
from causal_attn.export.decoder.cache import fixed_cache, growing_cache, present

__all__ = ["Decoder", "OwnDecoder", "cache_names", "decoder_module"]


def cache_names(prefix: str, layers: int) -> list[str]:
    """The ecosystem's names of a cache: ``prefix.0.key``, ``prefix.0.value``, and so on."""
    return [f"{prefix}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


class Decoder(nn.Module):
    """``forward(input_ids, attention_mask, position_ids, past_key_values_0_key, …)``.

    ``input_ids [batch, tokens]`` int64, ``attention_mask [batch, past_tokens + tokens]`` int64 (0:
    padding), ``position_ids [batch, tokens]`` int64 where the model takes them, and the past. The
    results are ``logits [batch, tokens, vocabulary]``, or ``[batch, 1, vocabulary]`` of the last
    token, the present, and where they are asked for the weights of every layer, ``[batch, heads,
    tokens, past_tokens + tokens]``.

    With `fixed`, ``past_lengths [batch]`` int64 comes before the past, which are buffers of one
    capacity, and the mask is ``[batch, capacity]``, one column a slot.
    """

    attention, experts = attention.NAME, experts.NAME

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        positions: bool,
        last_logits: bool,
        output_attentions: bool,
        fixed: bool,
    ) -> None:
        super().__init__()
        attention.register()
        experts.register()
        self.model, self.positions, self.last_logits = model, positions, last_logits
        self.output_attentions, self.fixed = output_attentions, fixed

    def run(self, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """`tensors` by name, the past after the others and in the order of the layers."""
        named = dict(tensors)
        lengths = named.pop("past_lengths") if self.fixed else None
        return self._called(named, lengths)

    def _called(self, named: dict[str, Tensor], lengths: Tensor | None) -> tuple[Tensor, ...]:
        """The model's own results, behind a cache that grows or, with `lengths`, a fixed one."""
        inputs = {name: named.pop(name) for name in ("input_ids", "attention_mask")}
        if self.positions:
            inputs["position_ids"] = named.pop("position_ids")
        past = list(named.values())
        # Not every model's code ties the two together, and the graph must.
        new = inputs["input_ids"].shape[1] if lengths is None else 0
        total = past[0].shape[2] + new
        torch._check(inputs["attention_mask"].shape[1] == total)
        cache = growing_cache(past) if lengths is None else fixed_cache(past, lengths)
        with _implemented(self.model, self.attention, self.experts):
            result = self.model(
                **inputs,
                cache=cache,
                use_cache=True,
                **({"logits_to_keep": 1} if self.last_logits else {}),
                **({"output_attentions": True} if self.output_attentions else {}),
            )
        weights = result.attentions if self.output_attentions else ()
        return result.logits, *present(cache), *weights


class OwnDecoder(Decoder):
    """The same with the library's plain attention and plain experts.

    With `fixed`, each sequence is run alone, behind a growing cache of the tokens that it holds,
    and what that cache gained is put into the buffers: the library's own way, which knows nothing
    of slots.
    """

    attention, experts = "eager", "eager"

    def run(self, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        if not self.fixed:
            return super().run(tensors)
        held: list[int] = tensors["past_lengths"].tolist()
        return tuple(
            torch.cat(parts)
            for parts in zip(
                *(self._alone(tensors, row, length) for row, length in enumerate(held)),
                strict=True,
            )
        )

    def _alone(self, tensors: dict[str, Tensor], row: int, length: int) -> list[Tensor]:
        one = {name: tensor[row : row + 1] for name, tensor in tensors.items()}
        del one["past_lengths"]
        total = length + one["input_ids"].shape[1]
        growing = one | {"attention_mask": one["attention_mask"][:, :total]}
        buffers = [name for name in one if name.startswith("past_key_values")]
        growing |= {name: one[name][:, :, :length] for name in buffers}
        logits, *grown = self._called(growing, None)
        left = [one[name][:, :, total:] for name in buffers]
        return [logits, *(torch.cat(parts, 2) for parts in zip(grown, left, strict=True))]


def decoder_module(
    kind: type[Decoder], model: PreTrainedModel, inputs: Sequence[str], **options: bool
) -> Decoder:
    """A `kind` whose ``forward`` has one parameter for each of `inputs`: the tracer names them so.

    `options` are those of `Decoder`.
    """
    names = [name.replace(".", "_") for name in inputs]

    def forward(self: Decoder, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        bound = dict(zip(names, args, strict=False)) | kwargs
        return self.run({name: bound[name] for name in names})

    signature = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    )
    forward.__signature__ = signature  # type: ignore[attr-defined]
    made: Any = type(kind.__name__, (kind,), {"forward": forward})
    decoder: Decoder = made(model, **options)
    return decoder


@contextlib.contextmanager
def _implemented(model: PreTrainedModel, attention: str, experts: str) -> Iterator[None]:
    """`model` with attention and experts called so, where its code asks a registry for them."""
    with contextlib.ExitStack() as undo:
        if model._can_set_attn_implementation():
            before = model.config._attn_implementation or "eager"
            undo.callback(model.set_attn_implementation, before)
            model.set_attn_implementation(attention)
        if model._can_set_experts_implementation():
            before = model.config._experts_implementation or "eager"
            undo.callback(model.set_experts_implementation, before)
            model.set_experts_implementation(experts)
        yield
