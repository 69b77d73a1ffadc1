"""From packages on disk to models that answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from causal_attn.package import read_package
from causal_attn.runtime import load
from causal_attn.runtime.generate import Generator
from causal_attn.runtime.providers import require_provider
from causal_attn.serve.language_model import LanguageModel
from causal_attn.serve.settings import Limits
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["load_models"]


def load_models(
    paths: dict[str, Path],
    *,
    provider: str = "cpu",
    accept: str = "certified",
    threads: int | None = None,
    limits: Limits,
    digests: Mapping[str, str] | None = None,
) -> list[TensorModel]:
    """One model for each of `paths`.

    Args:
        paths: By the names that clients call them.
        provider: As in `causal_attn.runtime.load`.
        accept: As in `causal_attn.runtime.load`.
        threads: Of one call; ``None``: ONNX Runtime's choice.
        limits: Of one request.
        digests: That the models must have, by their names; any, where there is none.

    Raises:
        CausalAttnError: As in `causal_attn.runtime.load`; what was loaded before is closed.
    """
    models: list[TensorModel] = []
    try:
        for name, path in paths.items():
            options: dict[str, Any] = {
                "accept": accept,
                "intra_op_threads": threads,
                "digest": (digests or {}).get(name),
            }
            if _is_language_model(path, provider):
                generator = Generator.open(path, provider, **options)
                models.append(LanguageModel(name, generator, limits))
            else:
                models.append(TensorModel(name, load(path, provider, **options), limits))
    except BaseException:
        for model in models:
            model.stop()
        raise
    return models


def _is_language_model(path: Path, provider: str) -> bool:
    """Whether the package at `path` says that it takes tokens and gives logits, with a cache."""
    if not path.is_dir():
        return False
    contract = read_package(path).select(require_provider(provider)).contract
    return (
        contract.cache is not None
        and any(tensor.name == "input_ids" for tensor in contract.inputs)
        and any(tensor.name == "logits" for tensor in contract.outputs)
    )
