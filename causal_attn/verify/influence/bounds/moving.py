"""Bounds of what is moved: the same values elsewhere, norms along the axes where they went."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.bounds.extent import Extent, hull
from causal_attn.verify.influence.bounds.step import Step, bound
from causal_attn.verify.influence.registry import MICROSOFT
from causal_attn.verify.influence.rules.movement import axis_groups
from causal_attn.verify.influence.tensor import Array

__all__ = ["reshaped", "transposed"]


def _moved(extent: Extent, move: Callable[[Array], Array] | None) -> Array | None:
    return None if extent.array is None or move is None else move(extent.array)


def transposed(extent: Extent, perm: Sequence[int]) -> Extent:
    """Axes in the order `perm`."""
    share = extent.share
    if share is not None:
        share = (list(perm).index(share[0]), share[1])
    axes = frozenset(place for place, axis in enumerate(perm) if axis in extent.axes)
    return replace(
        extent, axes=axes, share=share, array=_moved(extent, lambda a: np.transpose(a, perm))
    )


def reshaped(extent: Extent, old: Sequence[int], new: Sequence[int]) -> Extent:
    """The same elements in another shape."""
    axes: set[int] = set()
    factor = 1.0
    share = None
    for before, after in axis_groups(old, new):
        if extent.share is not None and extent.share[0] in before and len(before) == 1:
            share = (after[0], extent.share[1]) if len(after) == 1 else None
        touched = [axis for axis in before if axis in extent.axes]
        if touched:
            axes.update(after)
            factor *= math.prod(old[axis] for axis in before if axis not in extent.axes)
    norm = extent.norm * math.sqrt(factor)
    array = _moved(extent, lambda a: a.reshape(new))
    return Extent(extent.low, extent.high, norm, frozenset(axes), share, array)


@bound("Identity", "Dropout")
def _identity(step: Step) -> list[Extent]:
    return [step.extents[0]]


@bound("Transpose")
def _transpose(step: Step) -> list[Extent]:
    rank = step.tensor(0).rank
    return [transposed(step.extents[0], step.attr("perm", list(reversed(range(rank)))))]


@bound("Reshape", "Flatten", "Unsqueeze", "Squeeze")
@bound("ExpandDims", domain=MICROSOFT)
def _reshape(step: Step) -> list[Extent]:
    return [reshaped(step.extents[0], step.tensor(0).shape, step.output().shape)]


@bound("Expand", "Tile")
def _expand(step: Step) -> list[Extent]:
    extent, result = step.extents[0], step.output()
    lead = result.rank - step.tensor(0).rank
    old = (*(1,) * lead, *step.tensor(0).shape)
    axes = frozenset(axis + lead for axis in extent.axes)
    times = math.prod(result.shape[axis] / max(old[axis], 1) for axis in axes)
    return [Extent(extent.low, extent.high, extent.norm * math.sqrt(max(times, 1.0)), axes)]


@bound("Slice", "Trilu")
@bound("Trilu", domain=MICROSOFT)
def _part(step: Step) -> list[Extent]:
    return [replace(step.extents[0], array=None)]


@bound("Split")
def _split(step: Step) -> list[Extent]:
    return [replace(step.extents[0], array=None)] * len(step.outputs)


@bound("Pad")
def _pad(step: Step) -> list[Extent]:
    extent = replace(step.extents[0], array=None)
    if step.attr("mode", "constant") != "constant":
        return [Extent(extent.low, extent.high)]
    if step.has(2) and step.size(2):
        return [hull((extent, Extent(*step.values(2))))]
    return [extent.within(min(extent.low, 0.0), max(extent.high, 0.0))]


@bound("Gather")
def _gather(step: Step) -> list[Extent]:
    extent, data = step.extents[0], step.tensor(0)
    axis = step.attr("axis", 0) % data.rank
    extra = step.tensor(1).rank
    if extent.array is not None:
        others = [at for at in range(data.rank) if at != axis]
        # Rows of a table: how long they are, along all their other axes.
        extent = extent.along(data.shape, others)
    if axis in extent.axes:
        return [Extent(extent.low, extent.high)]
    axes = frozenset(at if at < axis else at + extra - 1 for at in extent.axes)
    return [Extent(extent.low, extent.high, extent.norm, axes)]


@bound("GatherElements", "GatherND", "Compress", "ReverseSequence", "TopK")
def _taken(step: Step) -> list[Extent]:
    return [Extent(step.extents[0].low, step.extents[0].high)]


@bound("Concat")
def _concat(step: Step) -> list[Extent]:
    tensors = [step.tensor(at) for at in range(len(step.inputs))]
    axis = step.attr("axis", 1) % tensors[0].rank
    parts = [at for at, tensor in enumerate(tensors) if tensor.size]
    both = hull([step.extents[at] for at in parts])
    axes = next((step.extents[at].axes for at in parts if step.extents[at].axes), frozenset())
    if not axes:
        return [both]
    lengths = [step.length(at, axes) for at in parts]
    norm = math.hypot(*lengths) if axis in axes else max(lengths)
    return [replace(both, norm=norm, axes=axes)]


@bound("ScatterND", "ScatterElements")
def _scattered(step: Step) -> list[Extent]:
    if step.attr("reduction", "none") != "none":
        return [Extent()]
    return [hull((step.extents[0], step.extents[2]))]


@bound("TensorScatter")
def _written(step: Step) -> list[Extent]:
    both = hull(step.extents[:2])
    shape = step.tensor(0).shape
    axes = step.extents[1].axes - {step.attr("axis", -2) % len(shape)}
    lengths = [step.extents[at].length(step.tensor(at).shape, axes) for at in (0, 1)]
    return [replace(both, norm=max(lengths), axes=axes) if axes else both]
