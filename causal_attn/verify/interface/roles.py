"""What each axis of each input of a graph is, in the words of a contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.dims import DimExpression
from causal_attn.verify import influence
from causal_attn.verify.feeds.feeder import Fixed, Sizes
from causal_attn.verify.interface.naming import (
    BATCH,
    BEAMS,
    HAS_PAST,
    PAST,
    POSITIONS,
    TOKENS,
    TOTAL_DIMS,
    Dims,
    is_mask,
    kind_of_token,
)

__all__ = ["BATCH", "PAST", "TOKENS", "Roles"]

TOTAL = f"{PAST} + {TOKENS}"


class Roles:
    """Dims of inputs and outputs, and the inputs whose values follow from the call.

    Attributes:
        tokens: Inputs of new tokens, ``name -> axis``; inputs of positions are added.
        total: Inputs of past and new tokens together.
        fixed: Inputs whose values follow from the sizes: how to make them.
        known: The same, as the influence proof takes them.
        held: What the values of each of those are, in words.
        conditions: What the values of those say that a caller may choose, in words.
        pinned: Dims of ours that have one size.
        mask: The input that is 0 for padding.
    """

    def __init__(
        self,
        inputs: Mapping[str, Dims],
        tokens: dict[str, int],
        past: Mapping[str, int],
        sizes: Mapping[str, int],
    ) -> None:
        self.inputs, self.tokens, self.past, self.sizes = inputs, tokens, past, sizes
        self.mask: str | None = None
        self.total: dict[str, int] = {}
        self.fixed: dict[str, Fixed] = {}
        self.known: dict[str, influence.Known] = {}
        self.held: dict[str, str] = {}
        self.conditions: dict[str, str] = {}
        self.pinned: dict[str, int] = {}
        self.names: dict[str, str] = {}
        for name, axis in tokens.items():
            self._call(inputs[name][axis], TOKENS)
        for name, axis in past.items():
            self._call(inputs[name][axis], PAST)
        for name, dims in inputs.items():
            if len(dims) > 1 and (tokens.get(name) or past.get(name) or is_mask(name)):
                self._call(dims[0], BATCH)
            self._fix(name, dims)

    def input_dims(self, name: str) -> tuple[str | int, ...]:
        dims: list[str | int] = [
            self._named(dim, f"{name}_{axis}") for axis, dim in enumerate(self.inputs[name])
        ]
        for axes, word in (
            (self.tokens, TOKENS), (self.past, PAST), (self.total, TOTAL if self.past else TOKENS),
        ):  # fmt: skip
            if name in axes:
                dims[axes[name]] = word
        return tuple(dims)

    def output_dims(self, dims: Dims) -> tuple[str | int, ...]:
        named = [self._named(dim, f"output_{axis}") for axis, dim in enumerate(dims)]
        pinned = self.pinned.get(TOKENS)
        if pinned is not None and TOKENS not in named and named.count(pinned) == 1:
            named[named.index(pinned)] = TOKENS
        return tuple(named)

    def _call(self, dim: str | int | None, word: str) -> None:
        if isinstance(dim, int):
            self.pinned[word] = dim
        elif dim is not None:
            self.names.setdefault(dim, word)

    def _named(self, dim: str | int | None, fallback: str) -> str | int:
        if isinstance(dim, int):
            return dim
        if dim is None:
            return fallback
        if dim in self.sizes:
            return self.sizes[dim]
        if dim in self.names:
            return self.names[dim]
        named = DimExpression.parse(dim).renamed(self.names)
        if named.is_sum_of(TOKENS, PAST) or dim in TOTAL_DIMS:
            return TOTAL
        # What is not understood may be anything, even of another length in each call.
        return named.text if all(name.isidentifier() for name in named.names) else fallback

    def _fix(self, name: str, dims: Dims) -> None:
        """Inputs whose values follow from the call: no position is in them."""
        if is_mask(name) and len(dims) <= 2:
            self.fixed[name] = lambda shape, sizes: np.ones(shape, np.int64)
            self.known[name] = influence.ones
            self.held[name] = f"{name} is all ones"
            if len(dims) == 2 and not self._is_anothers(name, dims[1]):
                self.mask = name
                alone = self.past and dims[1] == next(
                    (self.inputs[n][axis] for n, axis in self.tokens.items()), None
                )
                (self.tokens if alone else self.total)[name] = 1
        elif name in POSITIONS:
            axis = self.tokens.pop(name, len(dims) - 1)
            self.tokens[name] = axis
            self.fixed[name] = lambda shape, sizes: _positions(shape, axis, sizes)
            self.known[name] = influence.positions
            self.conditions[name] = self.held[name] = f"{name} count up"
        elif (kind := kind_of_token(name)) is not None:
            self.tokens.setdefault(name, len(dims) - 1)
            self.fixed[name] = lambda shape, sizes: np.full(shape, kind)
            self.known[name] = kind
            self.conditions[name] = self.held[name] = f"{name} are {kind}"
        elif name in BEAMS:
            self.fixed[name] = lambda shape, sizes: influence.positions(shape, 0, 0)
            self.known[name] = lambda shape, axis, past: influence.positions(shape, 0, 0)
            self.held[name] = "each sequence goes on from itself"
        elif name in HAS_PAST:
            self.fixed[name] = lambda shape, sizes: np.full(shape, sizes.get(PAST, 0) > 0)
            self.known[name] = lambda shape, axis, past: np.full(shape, past > 0)
            self.held[name] = f"{name} says whether there is a past"
        elif name in ("seqlens_k", "past_seq_len"):
            # GroupQueryAttention wants the total less one; past_seq_len of genai is the same.
            self.fixed[name] = lambda shape, sizes: np.full(shape, _total(sizes) - 1)
            self.held[name] = f"{name} is the past and the new tokens, less one"
        elif name in ("total_sequence_length", "total_seq_len"):
            self.fixed[name] = lambda shape, sizes: np.full(shape, _total(sizes))
            self.held[name] = f"{name} is the past and the new tokens"

    def _is_anothers(self, name: str, dim: str | int | None) -> bool:
        """Whether a mask is of another sequence, such as an encoder's."""
        others = {
            size
            for other, dims in self.inputs.items()
            if other not in {*self.tokens, *self.past, *POSITIONS}
            and not is_mask(other)
            and kind_of_token(other) is None
            for size in dims[1:]
            if isinstance(size, str)
        }
        return name.startswith("encoder") or dim in others


def _total(sizes: Sizes) -> int:
    return sizes.get(PAST, 0) + sizes[TOKENS]


def _positions(shape: tuple[int, ...], axis: int, sizes: Sizes) -> NDArray[Any]:
    return influence.positions(shape, axis, sizes.get(PAST, 0))
