"""One small model of random weights for each family that must export.

Everything that makes a family what it is stays on: windows that tests exceed, softcaps, sinks,
experts, shared keys and values, norms of queries and keys. Weights are large enough that a wrong
mask, scale or rotation changes the logits by far more than rounding does.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

__all__ = ["FAMILIES", "build"]

_IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}
_COMMON: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 512, "pad_token_id": 0, **_IDS,
}  # fmt: skip
_GROUPED: dict[str, Any] = {"num_key_value_heads": 2, **_COMMON}
_GPT: dict[str, Any] = {
    "vocab_size": 64, "n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, **_IDS
}  # fmt: skip
_WINDOW: dict[str, Any] = {"sliding_window": 6}
_ALTERNATING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8, **_WINDOW, **_GROUPED
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, **_GROUPED}

_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "mistral": ("MistralConfig", {**_WINDOW, **_GROUPED}),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", {"head_dim": 8, **_GROUPED}),
    "gemma2": ("Gemma2Config", {"query_pre_attn_scalar": 8, **_ALTERNATING}),
    "gemma3": ("Gemma3TextConfig", {"query_pre_attn_scalar": 8, **_ALTERNATING}),
    "phi3": ("Phi3Config", _GROUPED),
    "gpt2": ("GPT2Config", _GPT),
    "gpt_neox": ("GPTNeoXConfig", _COMMON),
    "gptj": ("GPTJConfig", {"rotary_dim": 4, **_GPT}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32, **_COMMON}),
    "bloom": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": (
        "FalconConfig",
        {"num_kv_heads": 2, "new_decoder_architecture": True, **_COMMON},
    ),
    "mpt": (
        "MptConfig",
        {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512},
    ),
    "stablelm": ("StableLmConfig", _GROUPED),
    "olmo2": ("Olmo2Config", _GROUPED),
    "granite": ("GraniteConfig", _GROUPED),
    "smollm3": ("SmolLM3Config", _GROUPED),
    "cohere": ("CohereConfig", _GROUPED),
    "gpt_oss": ("GptOssConfig", {"num_local_experts": 4, **_ALTERNATING, **_EXPERTS}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, **_EXPERTS}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16, **_EXPERTS},
    ),
}

FAMILIES = tuple(_CONFIGS)


def build(name: str) -> transformers.PreTrainedModel:
    """The model of a family, the same each time, in eval mode."""
    kind, values = _CONFIGS[name]
    config = getattr(transformers, kind)(**values)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert isinstance(model, transformers.PreTrainedModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval()
    return model
