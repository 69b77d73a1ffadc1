"""Data movement by shape: who reaches an element, and what is known of it, moves with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.tensor import (
    Array,
    Tensor,
    apply,
    lift,
    make,
)

__all__ = [
    "axis_groups",
    "concat",
    "drop_axes",
    "expand_to",
    "insert_axes",
    "repeat",
    "reshape",
    "slice_axis",
    "transpose",
]


def transpose(tensor: Tensor, perm: Sequence[int]) -> Tensor:
    """Axes in the order `perm`."""
    shape = [tensor.shape[axis] for axis in perm]
    return apply(tensor, lambda plane: np.transpose(plane, perm), shape)


def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape; only axes that mix are widened."""
    shape = tuple(shape)
    if shape == tensor.shape:
        return tensor
    if 0 in shape:
        return apply(tensor, lambda plane: np.zeros((1,) * len(shape), plane.dtype), shape)
    groups = axis_groups(tensor.shape, shape)
    return apply(tensor, lambda plane: _regroup(plane, tensor.shape, shape, groups), shape)


def axis_groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]]:
    """Smallest runs of old and new axes that hold the same elements."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        start = (i, j)
        left = old[i] if i < len(old) else 1
        right = new[j] if j < len(new) else 1
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while left != right:
            if left < right:
                left *= old[i]
                i += 1
            else:
                right *= new[j]
                j += 1
        groups.append((range(start[0], i), range(start[1], j)))
    return groups


def _regroup(
    plane: Array, old: Sequence[int], new: Sequence[int], groups: list[tuple[range, range]]
) -> Array:
    widened = [1] * len(old)
    target = [1] * len(new)
    for before, after in groups:
        if any(plane.shape[axis] != 1 for axis in before):
            for axis in before:
                widened[axis] = old[axis]
            for axis in after:
                target[axis] = new[axis]
    return np.broadcast_to(plane, widened).reshape(target)


def insert_axes(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """New axes of size 1; `axes` are places in the result."""
    rank = tensor.rank + len(axes)
    places = {axis % rank for axis in axes}
    dims = iter(tensor.shape)
    shape = [1 if axis in places else next(dims) for axis in range(rank)]

    def move(plane: Array) -> Array:
        dims = iter(plane.shape)
        return plane.reshape([1 if axis in places else next(dims) for axis in range(rank)])

    return apply(tensor, move, shape)


def drop_axes(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Without the given axes of size 1."""
    places = {axis % tensor.rank for axis in axes}
    kept = [axis for axis in range(tensor.rank) if axis not in places]
    shape = [tensor.shape[axis] for axis in kept]
    return apply(tensor, lambda plane: plane.reshape([plane.shape[axis] for axis in kept]), shape)


def expand_to(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcast to `shape` and the tensor's own, whichever is larger axis by axis."""
    target = np.broadcast_shapes(tensor.shape, tuple(shape))
    return apply(tensor, lambda plane: lift(plane, len(target)), target)


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """One after the other along `axis`."""
    axis %= tensors[0].rank
    shape = list(tensors[0].shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    # An empty past says nothing about its other axes, and may even differ in them.
    tensors = [tensor for tensor in tensors if tensor.shape[axis]] or list(tensors[:1])
    if len(tensors) == 1:
        return tensors[0]

    def join(planes: list[Array]) -> Array:
        sizes = np.broadcast_shapes(*[(*p.shape[:axis], 1, *p.shape[axis + 1 :]) for p in planes])
        pieces = []
        for tensor, plane in zip(tensors, planes, strict=True):
            target = list(sizes)
            target[axis] = tensor.shape[axis]
            pieces.append(np.broadcast_to(plane, target))
        return np.concatenate(pieces, axis)

    low = join([tensor.low for tensor in tensors])
    same = all(tensor.high is tensor.low for tensor in tensors)
    words = len(tensors[0].bits)
    return make(
        shape,
        tensors[0].dtype,
        [join([tensor.bits[word] for tensor in tensors]) for word in range(words)],
        join([tensor.known for tensor in tensors]),
        low,
        low if same else join([tensor.high for tensor in tensors]),
        void=join([_void(tensor) for tensor in tensors]),
    )


def _void(tensor: Tensor) -> Array:
    return np.zeros((1,) * tensor.rank, bool) if tensor.void is None else tensor.void


def slice_axis(
    tensor: Tensor, axis: int, start: int | None, end: int | None, step: int = 1
) -> Tensor:
    """Elements ``start:end:step`` along one axis."""
    axis %= tensor.rank
    taken = slice(start, end, step)
    shape = list(tensor.shape)
    shape[axis] = len(range(*taken.indices(shape[axis])))

    def move(plane: Array) -> Array:
        return plane if plane.shape[axis] == 1 else plane[(slice(None),) * axis + (taken,)]

    return apply(tensor, move, shape)


def repeat(tensor: Tensor, axis: int, times: int) -> Tensor:
    """Every element along `axis` `times` in a row, as grouped heads are."""
    shape = list(tensor.shape)
    shape[axis] *= times
    return apply(
        tensor,
        lambda plane: plane if plane.shape[axis] == 1 else np.repeat(plane, times, axis),
        shape,
    )


@rule("Identity", "Dropout", "Optional", "OptionalGetElement")
def _identity(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    if call.node.op == "Dropout" and len(call.node.outputs) > 1:
        return [tensor, call.silent(tensor.shape, bool)]
    return [tensor]


@rule("Reshape")
def _reshape(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    shape = call.ints(1, "shape") or []
    if not call.attr("allowzero", 0):
        shape = [tensor.shape[i] if dim == 0 else dim for i, dim in enumerate(shape)]
    if -1 in shape:
        rest = math.prod(dim for dim in shape if dim != -1)
        shape[shape.index(-1)] = tensor.size // rest if rest else 0
    if math.prod(shape) != tensor.size:
        raise DataDependent(f"it reshapes {list(tensor.shape)} to {shape}, which cannot be")
    return [reshape(tensor, shape)]


@rule("Flatten")
def _flatten(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = call.attr("axis", 1)
    axis = axis + tensor.rank if axis < 0 else axis
    return [reshape(tensor, (math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])))]


@rule("Transpose")
def _transpose(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    return [transpose(tensor, call.attr("perm", list(reversed(range(tensor.rank)))))]


@rule("Unsqueeze")
def _unsqueeze(call: Call) -> list[Tensor]:
    return [insert_axes(call.tensor(0), call.ints(1, "axes") or [])]


@rule("ExpandDims", domain=MICROSOFT)
def _expand_dims(call: Call) -> list[Tensor]:
    return [insert_axes(call.tensor(0), [int(call.values(1).reshape(-1)[0])])]


@rule("Squeeze")
def _squeeze(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axes = call.ints(1, "axes")
    if axes is None:
        axes = [axis for axis, dim in enumerate(tensor.shape) if dim == 1]
    return [drop_axes(tensor, axes)]


@rule("Expand")
def _expand(call: Call) -> list[Tensor]:
    return [expand_to(call.tensor(0), call.ints(1, "shape") or [])]


@rule("Concat")
def _concat(call: Call) -> list[Tensor]:
    tensors = [call.tensor(index) for index in range(len(call.inputs))]
    return [concat(tensors, call.attr("axis", 1))]


@rule("Slice")
def _slice(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    starts = call.ints(1, "starts") or []
    ends = call.ints(2, "ends") or []
    axes = call.ints(3, "axes") or list(range(len(starts)))
    steps = call.ints(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = tensor.shape[axis]
        # numpy reads an end of -dim - 1 as "before the first", as ONNX's huge negative ends mean.
        stop = None if step < 0 and end < -dim else end
        tensor = slice_axis(tensor, axis, start, stop, step)
    return [tensor]


@rule("Split")
def _split(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = call.attr("axis", 0) % tensor.rank
    dim = tensor.shape[axis]
    sizes = call.ints(1, "split")
    if sizes is None:
        count = call.attr("num_outputs", len(call.node.outputs))
        size = -(-dim // count)
        sizes = [min(size, max(0, dim - size * index)) for index in range(count)]
    results, start = [], 0
    for size in sizes:
        results.append(slice_axis(tensor, axis, start, start + size))
        start += size
    return list(results)


@rule("Tile")
def _tile(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    repeats = call.ints(1, "repeats") or []
    shape = [dim * times for dim, times in zip(tensor.shape, repeats, strict=True)]

    def move(plane: Array) -> Array:
        pairs = zip(plane.shape, repeats, strict=True)
        return np.tile(plane, [times if dim != 1 and times else 1 for dim, times in pairs])

    # An axis of size 1 that the plane shares is shared by its copies too.
    return [apply(tensor, move, shape)]


@rule("Trilu")
@rule("Trilu", domain=MICROSOFT)
def _trilu(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    offset = int(call.values(1).reshape(-1)[0]) if call.has(1) else 0
    rows, columns = tensor.shape[-2:]
    triangle = np.triu if call.attr("upper", 1) else np.tril
    kept = lift(triangle(np.ones((rows, columns), bool), offset), tensor.rank)
    nothing = np.zeros((), tensor.dtype)
    return [
        make(
            tensor.shape,
            tensor.dtype,
            [np.where(kept, plane, np.uint64(0)) for plane in tensor.bits],
            tensor.known | ~kept,
            np.where(kept, tensor.low, nothing),
            np.where(kept, tensor.high, nothing),
            void=None if tensor.void is None else tensor.void & kept,
        )
    ]


@rule("Pad")
@rule("Pad", domain=MICROSOFT)
def _pad(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    pads = call.ints(1, "pads") or []
    axes = call.ints(3, "axes") if call.has(3) else list(range(tensor.rank))
    assert axes is not None  # `ints` gives a list for an input that is there
    before = [0] * tensor.rank
    after = [0] * tensor.rank
    for place, axis in enumerate(axes):
        before[axis] = pads[place]
        after[axis] = pads[place + len(axes)]
    mode = call.attr("mode", "constant")
    if mode != "constant":
        return [_pad_by_index(tensor, before, after, mode)]
    filler = call.optional(2) or call.constant(call.attr("value", 0), tensor.dtype)
    for axis in range(tensor.rank):
        if before[axis] < 0 or after[axis] < 0:
            end = tensor.shape[axis] + min(0, after[axis])
            tensor = slice_axis(tensor, axis, max(0, -before[axis]), end)
        pieces = [tensor]
        for count, at in ((before[axis], 0), (after[axis], len(pieces))):
            if count > 0:
                shape = list(tensor.shape)
                shape[axis] = count
                piece = expand_to(reshape(filler, (1,) * tensor.rank), shape)
                pieces.insert(at if at == 0 else len(pieces), piece)
        tensor = concat(pieces, axis) if len(pieces) > 1 else tensor
    return [tensor]


def _pad_by_index(tensor: Tensor, before: list[int], after: list[int], mode: str) -> Tensor:
    for axis in range(tensor.rank):
        if not (before[axis] or after[axis]):
            continue
        width = (max(0, before[axis]), max(0, after[axis]))
        places = np.pad(np.arange(tensor.shape[axis]), width, mode=mode)  # type: ignore[call-overload]
        start = max(0, -before[axis])
        places = places[start : len(places) + min(0, after[axis])]
        shape = list(tensor.shape)
        shape[axis] = len(places)

        def move(plane: Array, axis: int = axis, places: Array = places) -> Array:
            return plane if plane.shape[axis] == 1 else np.take(plane, places, axis)

        tensor = apply(tensor, move, shape)
    return tensor


@rule("DepthToSpace", "SpaceToDepth")
def _blocks(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    batch, channels, height, width = tensor.shape
    block = call.attr("blocksize")
    if call.node.op == "SpaceToDepth":
        split = reshape(tensor, (batch, channels, height // block, block, width // block, block))
        order = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        moved = transpose(split, order)
        return [
            reshape(moved, (batch, channels * block**2, height // block, width // block)),
        ]
    if call.attr("mode", "DCR") == "DCR":
        split = reshape(tensor, (batch, block, block, channels // block**2, height, width))
        moved = transpose(split, (0, 3, 4, 1, 5, 2))
    else:
        split = reshape(tensor, (batch, channels // block**2, block, block, height, width))
        moved = transpose(split, (0, 1, 4, 2, 5, 3))
    return [reshape(moved, (batch, channels // block**2, height * block, width * block))]


@rule("ReverseSequence")
def _reverse_sequence(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    lengths = call.values(1)
    time, batch = call.attr("time_axis", 0), call.attr("batch_axis", 1)
    rows = []
    for index, length in enumerate(lengths):
        row = slice_axis(tensor, batch, index, index + 1)
        turned = slice_axis(slice_axis(row, time, 0, int(length)), time, None, None, -1)
        rows.append(concat([turned, slice_axis(row, time, int(length), None)], time))
    return [concat(rows, batch)]
