"""A language model from a folder as `transformers` saves it: weights, configuration, tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from causal_attn.errors import UsageError

__all__ = ["load_folder"]


def load_folder(folder: Path) -> PreTrainedModel:
    """The causal language model in `folder`, on the CPU, with weights as they were saved.

    Where there is a GGUF file and no ``config.json``, its weights are widened to float32, which
    takes the packages gguf and accelerate.

    Nothing is downloaded and no code in the folder is run.

    Raises:
        UsageError: The folder holds no such model.
    """
    packed = [] if (folder / "config.json").is_file() else sorted(folder.glob("*.gguf"))
    kind = {"gguf_file": packed[0].name, "dtype": torch.float32} if packed else {"dtype": "auto"}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **kind
        )
    # The library reads many formats and raises whatever their readers do.
    except Exception as error:
        head = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"`TARGET` must be a folder with a causal language model of transformers, got "
            f"{folder}: {head[:300]}"
        ) from error
    assert isinstance(model, PreTrainedModel)
    model.eval()
    if packed and hasattr(model.config, "quantization_config"):
        # The weights are no longer packed, and what is written beside the graph must not say so.
        del model.config.quantization_config
    return model
