"""The cache that a model is traced with: the past goes in as tensors, the present comes out."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from causal_attn.errors import CaptureError

__all__ = ["growing_cache", "present"]


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


def present(cache: DynamicCache) -> list[Tensor]:
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
