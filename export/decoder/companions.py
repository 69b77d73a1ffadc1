"""Files that lie beside a decoder's graph: configuration, tokenizer, and `genai_config.json`.

They are what lets the folder of a variant be loaded by others as it is: by ``AutoTokenizer`` and
by ``onnxruntime_genai.Model``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from causal_attn.export.target import Target
from causal_attn.package.companions import COMPANIONS

__all__ = ["companions"]


def companions(model: PreTrainedModel, target: Target) -> dict[str, bytes]:
    """Name to content of every file that goes beside the graph.

    Args:
        model: What is exported; of the folder that it was loaded from, if it was, configuration
            and tokenizer are carried along as they are.
        target: The same as a target: its names are those of the graph.
    """
    config = model.config.to_dict()
    config.pop("_name_or_path", None)
    files = {
        "config.json": _json(config),
        "genai_config.json": _json(_genai_config(model, target)),
    }
    origin = Path(model.config._name_or_path or "no folder")
    for name in COMPANIONS:
        if (origin / name).is_file() and name != "genai_config.json":
            files[name] = (origin / name).read_bytes()
    return files


def _genai_config(model: PreTrainedModel, target: Target) -> dict[str, Any]:
    """https://onnxruntime.ai/docs/genai/reference/config.html."""
    config = model.config.get_text_config()
    keys = target.examples["past_key_values.0.key"]
    layers = sum(name.endswith(".key") for name in target.examples)
    inputs = {
        name: name for name in target.examples if not name.startswith("past_key_values.")
    } | {
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    generation = model.generation_config
    ends = getattr(generation, "eos_token_id", None) or config.eos_token_id
    first_end = ends[0] if isinstance(ends, list) else ends
    pad = getattr(generation, "pad_token_id", None) or getattr(config, "pad_token_id", None)
    longest = getattr(config, "max_position_embeddings", None) or 2048
    return {
        "model": {
            # How a decoder with these names is run does not depend on its family.
            "type": "llama",
            "bos_token_id": config.bos_token_id,
            "eos_token_id": ends,
            "pad_token_id": first_end if pad is None else pad,
            "context_length": longest,
            "vocab_size": config.vocab_size,
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "head_size": keys.shape[3],
                "hidden_size": config.hidden_size,
                "num_attention_heads": config.num_attention_heads,
                "num_hidden_layers": layers,
                "num_key_value_heads": keys.shape[1],
                "inputs": inputs,
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": False,
            "max_length": longest,
            # The cache grows: what comes out is another tensor than what went in.
            "past_present_share_buffer": False,
        },
    }


def _json(values: Any) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()
