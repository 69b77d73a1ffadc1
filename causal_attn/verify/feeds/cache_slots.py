"""Feeds of a cache of fixed capacity: how much each sequence holds, and garbage beyond it.

``past_key`` and ``past_value [batch, kv_heads, capacity, features]`` are buffers of which sequence
``b`` has filled ``past_lengths[b]`` tokens. What lies beyond is whatever an earlier use left, and
must never reach a row; here it is NaN, infinities and large numbers, so that it cannot hide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.attention.spec import CacheKind
from causal_attn.package.contract import Contract, TensorContract

__all__ = ["CAPACITY", "HELD", "blank_unused", "fill_unused", "has_buffers", "held"]

CAPACITY = "capacity"
"""The dim of the slots."""

HELD = "past_lengths"
"""The input that says how many of them are filled, ``[batch]`` int64."""

# float16 ends at 65,504.
_GARBAGE = (np.nan, np.inf, -np.inf, 6e4)


def has_buffers(contract: Contract) -> bool:
    """Whether the graph writes into a cache of fixed capacity, as its spec says."""
    return contract.spec is not None and contract.spec.cache is CacheKind.STATIC


def held(shape: tuple[int, ...], sizes: Mapping[str, int]) -> NDArray[Any]:
    """Values of `HELD`: ``past_tokens`` if there is a size for it, else as different as room is.

    Of several sequences the first is full once the new tokens are in, and the last was empty; one
    alone is half full.
    """
    if "past_tokens" in sizes:
        return np.full(shape, sizes["past_tokens"])
    room = sizes[CAPACITY] - sizes["tokens"]
    if shape[0] == 1:
        return np.array([room // 2])
    lengths: NDArray[Any] = np.linspace(room, 0, shape[0]).astype(np.int64)
    return lengths


def fill_unused(
    tensor: TensorContract, array: NDArray[Any], lengths: NDArray[Any], rng: np.random.Generator
) -> None:
    """Overwrite the slots of a buffer from `lengths` on, in place, with `_GARBAGE`."""
    slots = _slots(tensor, array)
    unused = np.arange(slots.shape[1]) >= lengths[:, None]
    slots[unused] = rng.choice(_GARBAGE, slots[unused].shape)


def blank_unused(
    contract: Contract, feeds: Mapping[str, NDArray[Any]], results: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """`results` with 0 in the slots that hold no token after the call.

    There a kernel may leave what was there, or memory that nobody wrote.
    """
    blanked = dict(results)
    if not has_buffers(contract):
        return blanked
    tokens = next(
        feeds[tensor.name].shape[tensor.dims.index(contract.tokens)]
        for tensor in contract.inputs
        if contract.tokens in tensor.dims
    )
    for tensor in contract.outputs:
        # Weights have slots too, but as keys: the spec says what they are everywhere.
        if CAPACITY in tensor.dims and contract.tokens not in tensor.dims:
            array = blanked[tensor.name] = results[tensor.name].copy()
            slots = _slots(tensor, array)
            slots[np.arange(slots.shape[1]) >= feeds[HELD][:, None] + tokens] = 0
    return blanked


def _slots(tensor: TensorContract, array: NDArray[Any]) -> NDArray[Any]:
    """A view ``[batch, capacity, …]``."""
    return np.moveaxis(array, (tensor.dims.index("batch"), tensor.dims.index(CAPACITY)), (0, 1))
