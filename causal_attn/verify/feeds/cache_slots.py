"""Feeds of a cache of fixed capacity: how much each sequence holds, and garbage beyond it.

Its entries are buffers of which sequence ``b`` has filled ``lengths[b]`` tokens; which tensors and
axes these are, the contract's layout says. What lies beyond is whatever an earlier use left, and
must never reach a row; here it is NaN, infinities and large numbers, so that it cannot hide. Where
the layout says that slots must be finite, it is large numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.cache_layout import CacheEntry, EntryKind
from causal_attn.package.contract import Contract

__all__ = [
    "blank_unused",
    "buffers",
    "capacity",
    "fill_unused",
    "has_buffers",
    "held",
    "held_tokens",
]

# float16 ends at 65,504.
_GARBAGE = (np.nan, np.inf, -np.inf, 6e4)
_FINITE_GARBAGE = (-6e4, 6e4)

Arrays = Mapping[str, NDArray[Any]]


def buffers(contract: Contract) -> tuple[CacheEntry, ...]:
    """The entries of fixed capacity; none where no input says how much of them is filled."""
    layout = contract.cache
    return () if layout is None or layout.lengths is None else layout.of(EntryKind.FIXED)


def has_buffers(contract: Contract) -> bool:
    """Whether the graph writes into a cache of fixed capacity, behind lengths that it is given."""
    return bool(buffers(contract))


def capacity(contract: Contract) -> str | None:
    """The dim of the slots; ``None`` if there are no `buffers`."""
    return contract.cache.capacity if contract.cache is not None and buffers(contract) else None


def held(contract: Contract) -> Callable[[tuple[int, ...], Mapping[str, int]], NDArray[Any]]:
    """Values of the input of lengths, ``(shape, sizes) -> [batch]``.

    ``past_tokens`` if there is a size for it, else as different as room is: of several sequences
    the first is full once the new tokens are in, and the last was empty; one alone is half full.
    """

    def values(shape: tuple[int, ...], sizes: Mapping[str, int]) -> NDArray[Any]:
        if "past_tokens" in sizes:
            return np.full(shape, sizes["past_tokens"])
        room = sizes[capacity(contract) or ""] - sizes[contract.tokens]
        if shape[0] == 1:
            return np.array([room // 2])
        return np.linspace(room, 0, shape[0]).astype(np.int64)

    return values


def held_tokens(contract: Contract, feeds: Arrays) -> NDArray[Any] | None:
    """What each sequence of `feeds` holds before the call, ``[batch]``; ``None``: no `buffers`."""
    if contract.cache is None or contract.cache.lengths is None:
        return None
    return feeds[contract.cache.lengths]


def fill_unused(contract: Contract, feeds: Arrays, rng: np.random.Generator | None) -> None:
    """Overwrite the slots from the lengths on, in place: garbage from `rng`, or 0 without one."""
    lengths = held_tokens(contract, feeds)
    if lengths is None:
        return
    assert contract.cache is not None  # it has lengths
    floats = _FINITE_GARBAGE if contract.cache.finite else _GARBAGE
    for entry in buffers(contract):
        slots = _slots(contract, entry, feeds[entry.input])
        unused = np.arange(slots.shape[1]) >= lengths[:, None]
        slots[unused] = 0 if rng is None else _garbage(slots[unused], floats, rng)


def blank_unused(contract: Contract, feeds: Arrays, results: Arrays) -> dict[str, NDArray[Any]]:
    """`results` with 0 in the slots of the cache that hold no token after the call.

    There a kernel may leave what was there, or memory that nobody wrote.
    """
    blanked = dict(results)
    lengths = held_tokens(contract, feeds)
    if lengths is None:
        return blanked
    tokens = next(
        feeds[tensor.name].shape[tensor.dims.index(contract.tokens)]
        for tensor in contract.inputs
        if contract.tokens in tensor.dims
    )
    for entry in buffers(contract):
        if entry.output is not None and entry.output in results:
            array = blanked[entry.output] = results[entry.output].copy()
            slots = _slots(contract, entry, array)
            slots[np.arange(slots.shape[1]) >= lengths[:, None] + tokens] = 0
    return blanked


def _slots(contract: Contract, entry: CacheEntry, array: NDArray[Any]) -> NDArray[Any]:
    """A view ``[batch, capacity, …]`` of an entry, past or present."""
    dims = {tensor.name: tensor.dims for tensor in contract.inputs}
    assert contract.cache is not None  # of `buffers` only
    assert contract.cache.lengths is not None
    assert entry.axis is not None
    (batch,) = dims[contract.cache.lengths]
    axes = [axis for axis, dim in enumerate(dims[entry.input]) if dim == batch]
    return np.moveaxis(array, (next(a for a in axes if a != entry.axis), entry.axis), (0, 1))


def _garbage(
    values: NDArray[Any], floats: tuple[float, ...], rng: np.random.Generator
) -> NDArray[Any]:
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        return rng.integers(limits.min, limits.max, values.shape, values.dtype, endpoint=True)
    return rng.choice(floats, values.shape)
