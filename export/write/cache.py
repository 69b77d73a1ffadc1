"""The cache of a graph that was written: by the spec of the op, else by names and dims."""

from __future__ import annotations

from collections.abc import Sequence

from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import TensorContract
from causal_attn.verify.interface.cache_by_name import find_cache

__all__ = ["cache_of"]

_PAIRS = {"past_key": "present_key", "past_value": "present_value"}
"""As `causal_attn.export.target.reference_target` calls the tensors of the op."""

_AXIS = 2
"""Of ``[batch, kv_heads, tokens, features]``."""


def cache_of(
    spec: AttentionSpec | None,
    inputs: Sequence[TensorContract],
    outputs: Sequence[TensorContract],
) -> CacheLayout | None:
    """The layout of the cache; ``None`` if there is none, or none that is certain.

    Args:
        spec: Of the reference op; ``None`` for a user's module.
        inputs: Of the graph.
        outputs: Of the graph.
    """
    if spec is None:
        return find_cache(inputs, outputs)
    if spec.cache is CacheKind.NONE:
        return None
    fixed = spec.cache is CacheKind.STATIC
    kind = EntryKind.FIXED if fixed else EntryKind.GROWING
    return CacheLayout(
        entries=tuple(
            CacheEntry(input=past, output=present, kind=kind, axis=_AXIS)
            for past, present in _PAIRS.items()
        ),
        lengths="past_lengths" if fixed else None,
        capacity="capacity" if fixed else None,
        in_place=fixed,
    )
