"""A language model from a folder as `transformers` saves it: weights, configuration, tokenizer."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from causal_attn.errors import UsageError

__all__ = ["load_folder"]


def load_folder(folder: Path) -> PreTrainedModel:
    """The causal language model in `folder`, on the CPU, with weights as they were saved.

    Nothing is downloaded and no code in the folder is run.

    Raises:
        UsageError: The folder holds no such model.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, dtype="auto"
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
    return model
