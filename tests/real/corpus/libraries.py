"""Modules of transformers and x-transformers, tiny and of random weights, taken as they come."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["HuggingFaceLayer", "WithoutCache", "hf_model", "hf_module", "x_decoder", "x_wrapper"]

# Their classes are made at run time, or have no types at all.
transformers: Any = importlib.import_module("transformers")
x_transformers: Any = importlib.import_module("x_transformers")

WIDTH, HEADS, VOCABULARY, POSITIONS = 32, 4, 61, 64

_COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "max_position_embeddings": POSITIONS,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 1, "n_head": HEADS, "rotary_dim": 4,
    "n_positions": POSITIONS, "n_ctx": POSITIONS, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_NO_SDPA = ("gptj", "codegen", "gpt_neo", "bloom", "xglm")
_OWN: dict[str, dict[str, Any]] = {
    "bert": {"is_decoder": True},
    "bloom": {"n_layer": 2, "n_head": HEADS},
    "gemma2": {"sliding_window": 5},
    "mistral": {"sliding_window": 5, "num_hidden_layers": 1},
    "gpt_neo": {
        "num_layers": 2, "num_heads": HEADS, "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
    },
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": WIDTH},
    "xglm": {"d_model": WIDTH, "ffn_dim": 48, "num_layers": 2, "attention_heads": HEADS},
}  # fmt: skip


def config(family: str, **changes: Any) -> Any:
    """A configuration of `family`, its attention through torch's own op where it can."""
    common = _GPT if family in ("gpt2", "gptj", "codegen", "openai-gpt") else _COMMON
    made = transformers.AutoConfig.for_model(
        family, **{**common, **_OWN.get(family, {}), **changes}
    )
    made._attn_implementation = "sdpa" if made.model_type not in _NO_SDPA else "eager"
    return made


class WithoutCache(nn.Module):
    """A whole model, ids in and logits out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def hf_model(family: str, **changes: Any) -> Any:
    """A causal language model of `family`, with its head."""
    return transformers.AutoModelForCausalLM.from_config(config(family, **changes)).eval()


def hf_module(family: str, name: str) -> Any:
    """One module of a model of `family`, by its path."""
    return hf_model(family).get_submodule(name)


class HuggingFaceLayer(nn.Module):
    """A layer of a rotary family: the angles come from the model's own module."""

    def __init__(self, family: str, name: str) -> None:
        super().__init__()
        model = hf_model(family)
        self.layer = model.get_submodule(name)
        self.rotary_emb = model.model.rotary_emb

    def forward(self, hidden_states: Tensor) -> Tensor:
        positions = torch.arange(hidden_states.shape[1])[None]
        angles = self.rotary_emb(hidden_states, positions)
        found = self.layer(
            hidden_states=hidden_states, position_embeddings=angles, attention_mask=None
        )
        out: Tensor = found[0] if isinstance(found, tuple) else found
        return out


def x_decoder(**options: Any) -> Any:
    """`Decoder` of x-transformers, over embeddings."""
    return x_transformers.Decoder(dim=WIDTH, depth=2, heads=HEADS, attn_dim_head=8, **options)


def x_wrapper(
    layers: str = "Decoder", wrapper: dict[str, Any] | None = None, **options: Any
) -> Any:
    """`TransformerWrapper` of x-transformers: ids in, logits out."""
    kind = getattr(x_transformers, layers)
    return x_transformers.TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=POSITIONS,
        attn_layers=kind(dim=WIDTH, depth=2, heads=HEADS, attn_dim_head=8, **options),
        **(wrapper or {}),
    )
