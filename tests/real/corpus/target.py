"""What a row of the table says of a module: how to make it and feed it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from causal_attn.package.certificate import Verdict

__all__ = ["Input", "RealTarget", "embeddings", "features", "ids"]

VOCABULARY = 61

Axes = Sequence[str | int | None]


@dataclass(frozen=True)
class Input:
    """An input of a module: its axes, as `dims` of `export` has them, or its sizes.

    Attributes:
        axes: A name for a dynamic axis, a number for a fixed one.
        below: Of ids: values are integers from 0, below this. ``None``: normal ones.
    """

    axes: tuple[str | int, ...]
    below: int | None = None

    def make(self, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.axes]
        if self.below is not None:
            return torch.randint(self.below, shape, generator=generator)
        return torch.randn(shape, generator=generator)


def embeddings(width: int = 32) -> Input:
    return Input(("batch", "tokens", width))


def features(heads: int = 4, width: int = 8) -> Input:
    return Input(("batch", heads, "tokens", width))


def ids() -> Input:
    return Input(("batch", "tokens"), below=VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class RealTarget:
    """A module of the corpus.

    Attributes:
        build: Makes it, in whatever mode its author leaves it; weights are seeded outside.
        inputs: By the parameters of ``forward``.
        refusal: Part of the sentence with which `export` refuses it; ``None``: it is exported.
        dtypes: That it is exported in.
        longest: The largest number of tokens, which `export` must find; ``None``: there is none.
        verdict: Of its certificate.
    """

    build: Callable[[], Any]
    inputs: Mapping[str, Input]
    refusal: str | None = None
    dtypes: tuple[str, ...] = ("float32",)
    longest: int | None = None
    verdict: Verdict = Verdict.CAUSAL

    def examples(self, seed: int, **sizes: int) -> dict[str, Tensor]:
        """Inputs of `sizes`; of dims that are not given, some size."""
        generator = torch.Generator().manual_seed(seed)
        chosen = {"memory": 6, "past_tokens": 5, **sizes}
        return {name: made.make(chosen, generator) for name, made in self.inputs.items()}

    @property
    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """What `export` is told of the axes."""
        return {
            name: tuple(axis if isinstance(axis, str) else None for axis in made.axes)
            for name, made in self.inputs.items()
        }
