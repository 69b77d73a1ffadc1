"""The cache that a model is traced with: the past goes in as tensors, the present comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from causal_attn.errors import CaptureError

__all__ = ["fixed_cache", "growing_cache", "present"]


def growing_cache(past: Sequence[Tensor]) -> DynamicCache:
    """A cache that holds `past` and grows by concatenation, the same in every layer.

    Layers with a window keep all of the past too: all caches of a graph then have one length, and
    the mask alone decides what is seen.

    Args:
        past: Keys and values of layer 0, of layer 1, and so on, each
            ``[batch, kv_heads, past_tokens, features]``, zero tokens allowed.
    """
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
        cache.update(keys, values, layer)
    return cache


class _FixedLayer(DynamicLayer):
    """Buffers ``[batch, kv_heads, capacity, features]``; tokens go behind `lengths [batch]`."""

    def __init__(self, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: Tensor
        self.values: Tensor
        self.keys, self.values, self.lengths = keys, values, lengths
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys = _written(self.keys, key_states, self.lengths)
        self.values = _written(self.values, value_states, self.lengths)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Tensor:  # type: ignore[override]
        """One length for each sequence: the masks of `causal_attn.export.decoder` know it."""
        # Where these broadcast against positions ``[batch, 1, q_tokens, kv_tokens]``.
        return self.lengths[:, None, None, None]


def fixed_cache(past: Sequence[Tensor], lengths: Tensor) -> Cache:
    """A cache of fixed capacity, the same in every layer, those with a window too.

    Args:
        past: As of `growing_cache`, each ``[batch, kv_heads, capacity, features]``. Slots without
            a token are read, times zero: they must be finite.
        lengths: ``[batch]`` int64, tokens that each sequence holds.
    """
    return Cache(
        layers=[
            _FixedLayer(keys, values, lengths)
            for keys, values in zip(past[::2], past[1::2], strict=True)
        ]
    )


def _written(buffer: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
    """`buffer` with `new` behind the tokens of each sequence: a ``ScatterND`` of rows.

    ONNX Runtime's kernel writes in place where the result is bound to the memory of the buffer.
    """
    batch, heads, tokens, _ = new.shape
    slots = lengths[:, None] + torch.arange(tokens, device=new.device)
    return buffer.index_put(
        (
            torch.arange(batch, device=new.device)[:, None, None],
            torch.arange(heads, device=new.device)[None, :, None],
            slots[:, None, :],
        ),
        new,
    )


def present(cache: Cache) -> list[Tensor]:
    """Keys and values of every layer, past and new together, in the order of `growing_cache`.

    Raises:
        CaptureError: A layer keeps something else than keys and values.
    """
    held: list[Tensor] = []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            raise CaptureError(
                f"`target` must keep keys and values in every layer, got {type(layer).__name__} "
                f"in layer {index}."
            )
        held += [layer.keys, layer.values]
    return held
