"""What is kept of the tokens before, and how a call hands it on.

::

    growing     . . a b c d         each call makes new arrays, the new token behind all rows;
                e f g h i j         shorter rows begin with zeros, which the mask hides

    fixed       a b c d . . . .     each call writes behind the tokens of each row, in place;
                e f g h i j . .     slots behind them are zeros, or finite numbers of calls before

Rows are laid out in memory that starts as zeros: nothing of another row, or of tokens that were
taken back, is in a slot that holds no token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.runtime.ort import new_buffer, value_of

__all__ = ["MASK", "Cache", "Past", "cache_of", "refused"]

MASK = "attention_mask"

Past = Mapping[str, Any]
"""Name of an input to the ``onnxruntime.OrtValue`` with what was kept of the calls before."""

_LEAST = 64
"""Slots without a token in buffers that grow, so that short sequences do not grow often."""


class Cache(ABC):
    """The cache of one model; it holds no tokens itself.

    Args:
        contract: Of the model, with a cache.
        provider: Where it runs.

    Attributes:
        share: Outputs that a call writes into the memory of an input.
    """

    share: Mapping[str, str]

    def __init__(self, contract: Contract, provider: Provider) -> None:
        assert contract.cache is not None  # as `cache_of` has seen
        inputs = {tensor.name: tensor for tensor in contract.inputs}
        batch = inputs["input_ids"].dims[0]
        self._provider = provider
        self._axes = {entry.input: _axis(entry) for entry in contract.cache.entries}
        self._rows = {
            entry.input: _row(inputs[entry.input], entry, batch)
            for entry in contract.cache.entries
        }

    @abstractmethod
    def nothing(self, batch: int) -> Past:
        """The past of the first call of `batch` sequences: no tokens."""

    @abstractmethod
    def with_room(self, past: Past, mask: NDArray[np.int64], new: int) -> Past:
        """`past`, or a copy of it with room for `new` tokens."""

    @abstractmethod
    def inputs(self, past: Past, mask: NDArray[np.int64], new: int) -> dict[str, NDArray[Any]]:
        """What the model takes besides tokens, positions and `past`.

        Args:
            past: What `with_room` gave.
            mask: ``[batch, past + tokens]``, 1 for tokens and 0 for padding.
            new: Tokens of the call.
        """

    @abstractmethod
    def laid(self, sources: Sequence[tuple[Past, int]], lengths: Sequence[int]) -> Past:
        """Rows of several pasts in one.

        Args:
            sources: At least one past, and the row of it.
            lengths: Tokens of each.
        """

    @abstractmethod
    def rewound(self, past: Past, tokens: int) -> Past:
        """The first `tokens` of `past`, of one sequence, copied."""

    @abstractmethod
    def copied(self, past: Past, tokens: int) -> Past:
        """`past`, of one sequence with so many tokens, which calls on the other do not change."""

    def _zeros(self, name: str, batch: int, slots: int) -> NDArray[Any]:
        shape, dtype = self._rows[name]
        axis = self._axes[name] - 1
        return np.zeros((batch, *shape[:axis], slots, *shape[axis + 1 :]), dtype)

    def _filled(
        self, sources: Sequence[tuple[Past, int]], lengths: Sequence[int], slots: int, at_end: bool
    ) -> dict[str, NDArray[Any]]:
        filled = {}
        for name, axis in self._axes.items():
            laid = self._zeros(name, len(lengths), slots)
            for index, ((past, row), length) in enumerate(zip(sources, lengths, strict=True)):
                held = np.moveaxis(past[name].numpy()[row], axis - 1, 0)
                free = np.moveaxis(laid[index], axis - 1, 0)
                first, start = (len(held) - length, slots - length) if at_end else (0, 0)
                free[start : start + length] = held[first : first + length]
            filled[name] = laid
        return filled


class _Growing(Cache):
    """Entries ``[batch, …, past_tokens, …]``: calls concatenate, and change nothing."""

    share: Mapping[str, str] = {}

    def nothing(self, batch: int) -> Past:
        return {name: value_of(self._zeros(name, batch, 0)) for name in self._axes}

    def with_room(self, past: Past, mask: NDArray[np.int64], new: int) -> Past:
        return past

    def inputs(self, past: Past, mask: NDArray[np.int64], new: int) -> dict[str, NDArray[Any]]:
        return {MASK: mask}

    def laid(self, sources: Sequence[tuple[Past, int]], lengths: Sequence[int]) -> Past:
        # The last columns are a row's own, whatever it was padded to before.
        filled = self._filled(sources, lengths, max(lengths), at_end=True)
        return {name: value_of(array) for name, array in filled.items()}

    def rewound(self, past: Past, tokens: int) -> Past:
        filled = self._filled([(past, 0)], [tokens], tokens, at_end=False)
        return {name: value_of(array) for name, array in filled.items()}

    def copied(self, past: Past, tokens: int) -> Past:
        return past


class _Fixed(Cache):
    """Entries ``[batch, …, capacity, …]``, of more slots wherever tokens need them."""

    def __init__(
        self, contract: Contract, provider: Provider, capacity: int | None, longest: int | None
    ) -> None:
        super().__init__(contract, provider)
        layout = contract.cache
        assert layout is not None
        assert layout.lengths is not None  # as `cache_of` has seen
        self.share = layout.shared
        self._lengths = layout.lengths
        dtypes = {tensor.name: tensor.dtype for tensor in contract.inputs}
        self._lengths_dtype = np.dtype(dtypes[self._lengths])
        self._capacity, self._longest = capacity, longest

    def nothing(self, batch: int) -> Past:
        return self._values(
            {name: self._zeros(name, batch, self._slots(0)) for name in self._axes}
        )

    def with_room(self, past: Past, mask: NDArray[np.int64], new: int) -> Past:
        held = mask.sum(1)
        if held.max() <= self._capacity_of(past):
            return past
        rows = [(past, row) for row in range(len(held))]
        filled = self._filled(rows, (held - new).tolist(), self._slots(int(held.max())), False)
        return self._values(filled)

    def inputs(self, past: Past, mask: NDArray[np.int64], new: int) -> dict[str, NDArray[Any]]:
        # Where a row ends is said by its length alone: it has no padding.
        return {
            MASK: np.ones((len(mask), self._capacity_of(past)), np.int64),
            self._lengths: (mask.sum(1) - new).astype(self._lengths_dtype),
        }

    def laid(self, sources: Sequence[tuple[Past, int]], lengths: Sequence[int]) -> Past:
        slots = self._slots(max(lengths))
        return self._values(self._filled(sources, lengths, slots, at_end=False))

    def rewound(self, past: Past, tokens: int) -> Past:
        # Not the buffers as they are: a token that was taken back may have left a NaN.
        slots = self._capacity_of(past)
        return self._values(self._filled([(past, 0)], [tokens], slots, at_end=False))

    def copied(self, past: Past, tokens: int) -> Past:
        return self._values(self._filled([(past, 0)], [tokens], tokens, at_end=False))

    def _slots(self, tokens: int) -> int:
        """For so many tokens, and some more."""
        if self._capacity is not None:
            return self._capacity
        # A quarter: all slots are read in each call, and each token is copied five times at most.
        slots = tokens + max(tokens // 4, _LEAST)
        return slots if self._longest is None else min(slots, self._longest)

    def _capacity_of(self, past: Past) -> int:
        name, axis = next(iter(self._axes.items()))
        return int(past[name].shape()[axis])

    def _values(self, arrays: Mapping[str, NDArray[Any]]) -> Past:
        if self._provider.memory == "cpu":
            return {name: value_of(array) for name, array in arrays.items()}
        values = {}
        for name, array in arrays.items():
            values[name] = new_buffer(array.shape, array.dtype, self._provider)
            values[name].update_inplace(array)
        return values


def cache_of(
    contract: Contract, provider: Provider, *, capacity: int | None, longest: int | None
) -> Cache:
    """The cache that a language model's contract describes.

    Args:
        contract: Of a model with an input ``input_ids``.
        provider: Where it runs.
        capacity: Slots of buffers of fixed capacity; ``None``: as many as tokens need.
        longest: Most tokens of a sequence; ``None``: any number.

    Raises:
        UsageError: It has no cache, or one of another kind.
    """
    layout = contract.cache
    if layout is None:
        raise refused("a cache in its contract, got none")
    kinds = {entry.kind for entry in layout.entries}
    if kinds == {EntryKind.GROWING}:
        return _Growing(contract, provider)
    if kinds != {EntryKind.FIXED}:
        other = next(
            entry
            for entry in layout.entries
            if entry.kind not in (EntryKind.GROWING, EntryKind.FIXED) or len(kinds) > 1
        )
        raise refused(
            "a cache that grows, or one of fixed capacity, in all entries, got "
            f"{other.input!r} of kind {other.kind}"
        )
    _require_lengths(contract, layout)
    return _Fixed(contract, provider, capacity, longest)


def _require_lengths(contract: Contract, layout: CacheLayout) -> None:
    if layout.lengths is None:
        raise refused("the length of each sequence as an input beside its fixed cache, got none")
    for tensor in contract.inputs:
        if tensor.name == MASK and tensor.dims[1:] != (layout.capacity,):
            raise refused(
                f"one column a slot in `{MASK}` beside its fixed cache, got {list(tensor.dims)}"
            )


def _axis(entry: CacheEntry) -> int:
    assert entry.axis is not None  # a contract refuses a growing or fixed entry without one
    return entry.axis


def _row(
    tensor: TensorContract, entry: CacheEntry, batch: str | int
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape of no tokens, without the batch in front, and the dtype."""
    if tensor.dims[0] != batch or entry.axis == 0:
        raise refused(f"sequences along dim 0 of `{tensor.name}`, got {list(tensor.dims)}")
    shape = [0 if axis == entry.axis else dim for axis, dim in enumerate(tensor.dims)][1:]
    if named := [dim for dim in shape if isinstance(dim, str)]:
        raise refused(f"no dims besides batch and past in `{tensor.name}`, got {named}")
    return tuple(int(dim) for dim in shape), np.dtype(tensor.dtype)


def refused(what: str) -> UsageError:
    """Of a session that is not of a language model, or of one that cannot be driven."""
    return UsageError(
        f"`session` must be of a language model with {what}. Export one with "
        "`causal-attn export FOLDER -o OUT`."
    )
