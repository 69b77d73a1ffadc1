"""A graph's cache, by the names and dims of its inputs and outputs, where they leave no doubt."""

from __future__ import annotations

from collections.abc import Sequence

from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.verify.interface.naming import LENGTHS, belongs_to_cache, pair_cache

__all__ = ["find_cache"]


def find_cache(
    inputs: Sequence[TensorContract],
    outputs: Sequence[TensorContract],
    *,
    tokens: str = "tokens",
) -> CacheLayout | None:
    """The cache of a graph all of whose dims are known; ``None`` if there is any doubt.

    Inputs are paired with outputs by their names. A pair grows if the output has one dim that is
    the input's plus the tokens, and is otherwise of the same dims. It is of fixed capacity if all
    dims are the same, an input of lengths is there, and only one named dim besides the sequences
    can be the slots. Half a cache is none.
    """
    given = {tensor.name: tensor for tensor in inputs}
    results = {tensor.name: tensor for tensor in outputs}
    past = [name for name in given if belongs_to_cache(name) and name not in LENGTHS]
    pairs = pair_cache(past, {name: list(tensor.dims) for name, tensor in results.items()})
    lengths = [name for name in given if name in LENGTHS]
    held = lengths[0] if len(lengths) == 1 else None
    batch = given[held].dims[:1] if held is not None else ()
    entries = []
    for source, target in pairs:
        entry = _entry(given[source], results[target], tokens, batch)
        if entry is None:
            return None
        entries.append(entry)
    slots = {
        given[entry.input].dims[entry.axis]
        for entry in entries
        if entry.kind is EntryKind.FIXED and entry.axis is not None
    }
    if len(slots) > 1:
        return None
    layout = CacheLayout(
        entries=tuple(entries),
        lengths=held if slots else None,
        capacity=next((dim for dim in slots if isinstance(dim, str)), None),
    )
    return None if layout.fault(inputs, outputs, tokens) else layout


def _entry(
    past: TensorContract, present: TensorContract, tokens: str, batch: tuple[str | int, ...]
) -> CacheEntry | None:
    if len(past.dims) != len(present.dims):
        return None
    changed = [
        axis
        for axis, (before, after) in enumerate(zip(past.dims, present.dims, strict=True))
        if before != after
    ]
    if not changed:
        free = [
            axis for axis, dim in enumerate(past.dims) if isinstance(dim, str) and dim not in batch
        ]
        if not batch or len(free) != 1:
            return None
        return CacheEntry(input=past.name, output=present.name, kind=EntryKind.FIXED, axis=free[0])
    (axis, *others) = changed
    before, after = past.dims[axis], present.dims[axis]
    grows = (
        isinstance(before, str)
        and isinstance(after, str)
        and DimExpression.parse(after).is_sum_of(before, tokens)
    )
    if others or not grows:
        return None
    return CacheEntry(input=past.name, output=present.name, kind=EntryKind.GROWING, axis=axis)
