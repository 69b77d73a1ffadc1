"""What a model's own folder says about generation: how to sample, where to end, how far to go.

``generation_config.json`` is read as `transformers` writes it, ``genai_config.json`` for what it
lacks. Both are untrusted files: a value that is not what it should be is an error, a name that is
not known here is left alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from causal_attn.errors import PackageError
from causal_attn.json_text import parse_json, shown
from causal_attn.package.confine import read_text
from causal_attn.runtime.generate.sampling import Sampling

__all__ = ["Defaults", "read_json"]

_TOP_K = 50
"""What `transformers` samples from where neither the call nor the model's folder says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What `Generator.generate` does where it is not told otherwise.

    Attributes:
        sampling: How tokens are chosen; greedy where the folder does not ask for sampling. A
            call that samples does so among the 50 likeliest where neither it nor the folder has
            ``top_k``, as `transformers` does.
        ends: Tokens that end a sequence.
        max_new_tokens: Most tokens that are generated; ``None``: until an end or the context.
        context: Most tokens of prompt and answer together; ``None``: any number.
    """

    sampling: Sampling = field(default_factory=lambda: Sampling(top_k=_TOP_K))
    ends: frozenset[int] = frozenset()
    max_new_tokens: int | None = None
    context: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Defaults:
        """Those of the model in `folder`; a folder without such files has none.

        Raises:
            PackageError: A file is not JSON, or has a value that cannot be.
        """
        generation = read_json(folder / "generation_config.json")
        genai = read_json(folder / "genai_config.json").get("model", {})
        config = read_json(folder / "config.json")
        if not isinstance(genai, dict):
            raise PackageError(f"`model` of genai_config.json must be an object, got {genai!r}.")
        ends = generation.get("eos_token_id", genai.get("eos_token_id"))
        context = genai.get("context_length", config.get("max_position_embeddings"))
        return cls(
            sampling=_sampling(generation),
            ends=frozenset(_ids(ends)),
            max_new_tokens=_count("max_new_tokens", generation.get("max_new_tokens")),
            context=_count("context_length", context),
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file at `path`; an empty one if there is no file.

    Raises:
        PackageError: It is no regular file, too large, not UTF-8, not JSON, or no object.
    """
    if not os.path.lexists(path):
        return {}
    value = parse_json(read_text(path, path.name), path.name)
    if not isinstance(value, dict):
        raise PackageError(f"{path.name} must be an object, got {shown(value)}.")
    return value


def _sampling(values: dict[str, Any]) -> Sampling:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: values[name] for name in names if values.get(name) is not None}
    if not values.get("do_sample"):
        given["temperature"] = 0.0
    try:
        return Sampling(**({"temperature": 1.0, "top_k": _TOP_K} | given))
    except ValueError as error:
        raise PackageError(f"generation_config.json is wrong: {error}") from None


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(one) is int and one >= 0 for one in values):
        raise PackageError(f"`eos_token_id` must be tokens >= 0, got {shown(value)}.")
    return values


def _count(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise PackageError(f"`{name}` must be an integer >= 1, got {shown(value)}.")
    return value
