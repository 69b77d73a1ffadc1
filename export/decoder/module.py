"""A model of `transformers` as a function of tensors: what is traced, and what it is held against.

Both call the same model. `Decoder` runs it with the attention of `causal_attn.export.decoder`,
`OwnDecoder` with the attention that the library itself has for it; nothing else differs, and the
float64 run of the second is the oracle of the first. Models whose attention asks no registry
(BLOOM, Falcon, MPT) run with their own in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from causal_attn.export.decoder import attention, experts
from causal_attn.export.decoder.cache import growing_cache, present

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
    """

    attention, experts = attention.NAME, experts.NAME

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        positions: bool,
        last_logits: bool,
        output_attentions: bool,
    ) -> None:
        super().__init__()
        attention.register()
        experts.register()
        self.model, self.positions, self.last_logits = model, positions, last_logits
        self.output_attentions = output_attentions

    def run(self, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """`tensors` by name, the past after the others and in the order of the layers."""
        named = dict(tensors)
        inputs = {name: named.pop(name) for name in ("input_ids", "attention_mask")}
        if self.positions:
            inputs["position_ids"] = named.pop("position_ids")
        past = list(named.values())
        # Not every model's code ties the two together, and the graph must.
        total = past[0].shape[2] + inputs["input_ids"].shape[1]
        torch._check(inputs["attention_mask"].shape[1] == total)
        cache = growing_cache(past)
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
    """The same with the library's plain attention and plain experts."""

    attention, experts = "eager", "eager"


def decoder_module(
    kind: type[Decoder],
    model: PreTrainedModel,
    *,
    layers: int,
    positions: bool,
    last_logits: bool,
    output_attentions: bool,
) -> Decoder:
    """A `kind` whose ``forward`` has one parameter for each tensor: the tracer names inputs so."""
    names = ["input_ids", "attention_mask", *(["position_ids"] if positions else [])]
    names += [name.replace(".", "_") for name in cache_names("past_key_values", layers)]

    def forward(self: Decoder, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        bound = dict(zip(names, args, strict=False)) | kwargs
        return self.run({name: bound[name] for name in names})

    signature = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    )
    forward.__signature__ = signature  # type: ignore[attr-defined]
    made: Any = type(kind.__name__, (kind,), {"forward": forward})
    decoder: Decoder = made(
        model, positions=positions, last_logits=last_logits, output_attentions=output_attentions
    )
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
