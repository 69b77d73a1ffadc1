"""From packages on disk to models that answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from causal_attn.errors import UsageError
from causal_attn.runtime import load
from causal_attn.serve.settings import Limits
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["load_models", "named_paths"]

_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


def named_paths(packages: Sequence[str]) -> dict[str, Path]:
    """``PATH`` or ``NAME=PATH`` to names and paths; a path alone is called by its last part.

    Raises:
        UsageError: There is none, a name has other characters than letters, digits, ``_``, ``.``
            and ``-``, or two are the same.
    """
    if not packages:
        raise UsageError("`packages` must name at least one, got none.")
    paths: dict[str, Path] = {}
    for entry in packages:
        name, equals, path = entry.partition("=")
        if not equals:
            name, path = Path(entry).resolve().name.removesuffix(".onnx"), entry
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"`packages` must have names of letters, digits, _, . and -, got {name!r}. Write "
                f"NAME={path}."
            )
        if name in paths:
            raise UsageError(
                f"`packages` must have different names, got {name!r} twice. Write NAME=PATH."
            )
        paths[name] = Path(path)
    return paths


def load_models(
    paths: dict[str, Path],
    *,
    provider: str = "cpu",
    accept: str = "certified",
    threads: int | None = None,
    limits: Limits,
) -> list[TensorModel]:
    """One model for each of `paths`.

    Args:
        paths: By the names that clients call them.
        provider: As in `causal_attn.runtime.load`.
        accept: As in `causal_attn.runtime.load`.
        threads: Of one call; ``None``: ONNX Runtime's choice.
        limits: Of one request.

    Raises:
        CausalAttnError: As in `causal_attn.runtime.load`; what was loaded before is closed.
    """
    models: list[TensorModel] = []
    try:
        for name, path in paths.items():
            session = load(path, provider, accept=accept, intra_op_threads=threads)
            models.append(TensorModel(name, session, limits))
    except BaseException:
        for model in models:
            model.stop()
        raise
    return models
