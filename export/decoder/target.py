"""A language model of `transformers` as a target: its tensors, their names, its free dims."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from causal_attn.attention.spec import CacheKind
from causal_attn.errors import CaptureError, UsageError
from causal_attn.export.decoder.cache import present as held_by
from causal_attn.export.decoder.companions import companions
from causal_attn.export.decoder.module import Decoder, OwnDecoder, cache_names, decoder_module
from causal_attn.export.one_run import evaluating
from causal_attn.export.target import Target
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind

__all__ = ["decoder_target"]

_BATCH, _TOKENS, _PAST, _CAPACITY = 2, 5, 7, 23
"""Of the examples: all different, none 0 or 1, which torch.export takes for constants."""

TOTAL = "past_tokens + tokens"


def decoder_target(
    model: PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    last_logits: bool = False,
    output_attentions: bool = False,
    cache: CacheKind = CacheKind.DYNAMIC,
) -> Target:
    """`model` with its cache, the names and the order of inputs those of the ecosystem.

    Args:
        model: A causal language model; it is put into eval mode while it runs, and not changed.
        dtype: Of weights, cache and logits; default the model's own. Another one takes a copy.
        last_logits: Whether only the last token's logits come out.
        output_attentions: Whether the weights of every layer come out, as ``attentions.0`` and so
            on.
        cache: Dynamic: it grows. Static: buffers of a capacity that each call may choose, and an
            input ``past_lengths [batch]`` of what each sequence holds in them.

    Raises:
        UsageError: `cache` is none.
        CaptureError: The model is of a kind that has no such graph; the message says which.
    """
    _refuse(model)
    if cache is CacheKind.NONE:
        raise UsageError("`cache` must be 'dynamic' or 'static' for a language model, got 'none'.")
    fixed = cache is CacheKind.STATIC
    if fixed and output_attentions:
        raise UsageError("`output_attentions` must be left out with a static cache.")
    if fixed and not model._can_set_attn_implementation():
        raise CaptureError(
            f"`cache` must be 'dynamic' for {type(model).__name__}, got 'static': its own "
            "attention asks no registry and takes one length of the past for all sequences."
        )
    if dtype is not None and dtype != model.dtype:
        model = copy.deepcopy(model)
        nn.Module.to(model, dtype)
    held = _first_present(model)
    positions = _reads_positions(model)
    layers = len(held) // 2
    vocabulary = model.get_input_embeddings().get_parameter("weight").shape[0]
    slots, total = ("capacity", "capacity") if fixed else ("past_tokens", TOTAL)
    past = _CAPACITY if fixed else _PAST
    examples: dict[str, Tensor] = {
        "input_ids": torch.randint(
            0, model.config.get_text_config().vocab_size, (_BATCH, _TOKENS)
        ),
        "attention_mask": torch.ones(_BATCH, past if fixed else past + _TOKENS, dtype=torch.int64),
    }
    dims = {
        "input_ids": {0: "batch", 1: "tokens"},
        "attention_mask": {0: "batch", 1: total},
    }
    if positions:
        examples["position_ids"] = torch.arange(_PAST, _PAST + _TOKENS).repeat(_BATCH, 1)
        dims["position_ids"] = {0: "batch", 1: "tokens"}
    if fixed:
        examples["past_lengths"] = torch.full((_BATCH,), _PAST)
        dims["past_lengths"] = {0: "batch"}
    names = cache_names("past_key_values", layers)
    for name, tensor in zip(names, held, strict=True):
        _, heads, _, features = tensor.shape
        examples[name] = torch.randn(_BATCH, heads, past, features, dtype=tensor.dtype)
        dims[name] = {0: "batch", 2: slots}
    weights = [f"attentions.{layer}" for layer in range(layers)] if output_attentions else []
    kinds = [
        decoder_module(
            kind,
            model,
            list(examples),
            positions=positions,
            last_logits=last_logits,
            output_attentions=output_attentions,
            fixed=fixed,
        )
        for kind in (Decoder, OwnDecoder)
    ]
    target = Target(
        module=kinds[0],
        examples=examples,
        dims=dims,
        outputs=("logits", *cache_names("present", layers), *weights),
        cache=_fixed_layout(layers) if fixed else None,
        bounds={"input_ids": (0, vocabulary)},
        reference=kinds[1],
    )
    return replace(target, companions=companions(model, target))


def _fixed_layout(layers: int) -> CacheLayout:
    past, present = (cache_names(prefix, layers) for prefix in ("past_key_values", "present"))
    return CacheLayout(
        entries=tuple(
            CacheEntry(input=source, output=output, kind=EntryKind.FIXED, axis=2)
            for source, output in zip(past, present, strict=True)
        ),
        lengths="past_lengths",
        capacity="capacity",
        in_place=True,
        finite=True,
    )


def _refuse(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise CaptureError(
            f"`target` must be a decoder alone, got {name}, which has an encoder: its cache holds "
            "keys of another sequence."
        )
    if model.get_output_embeddings() is None:
        raise CaptureError(
            f"`target` must have a head that gives logits, got {name}. Load it with "
            "AutoModelForCausalLM."
        )


def _first_present(model: PreTrainedModel) -> list[Tensor]:
    """What a call without a past leaves in the cache: how many layers, heads and features.

    Raises:
        CaptureError: The model keeps something else than keys and values.
    """
    cache = DynamicCache(config=model.config)
    with evaluating(model), torch.no_grad():
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), cache=cache, use_cache=True)
    return held_by(cache)


def _reads_positions(model: PreTrainedModel) -> bool:
    """Whether position ids change what the model says: with ALiBi they are taken and ignored."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    ids = torch.zeros(1, 3, dtype=torch.int64)
    positions = torch.tensor([[0, 1, 2]])
    with evaluating(model), torch.no_grad():
        near = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        far = model(input_ids=ids, position_ids=positions * 2, use_cache=False).logits
    return not torch.equal(near, far)
