"""Rows that data moves and moves back: experts take their tokens, work on them, and return them.

Sorting by expert gives an order, a mask picks rows; both are data. A row's own influence stays its
own all the way, and where rows return to where they came from, the order is seen no more. So rows
are followed as though they had not been moved (`Reordered`), by the rules for what is not moved,
through operators that treat every row alike. Anything else sees rows in an order that is data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.registry import Call
from causal_attn.verify.influence.rules.movement import axis_groups, reshape
from causal_attn.verify.influence.tensor import (
    Array,
    Reordered,
    Tensor,
    Value,
    constant,
    join_words,
    make,
    unknown,
)

__all__ = ["move", "ordered_by"]

Rule = Callable[[Call], Sequence[Value]]

_ALIKE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal", "Erf", "Exp", "Floor",
    "Gelu", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min",
    "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Sigmoid", "Sign", "Sin",
    "Softplus", "Sqrt", "Sub", "Tanh", "Where", "Xor",
}  # fmt: skip
"""Element by element, the same for every element."""


def ordered_by(call: Call) -> list[Value] | None:
    """Results of an operator by which data orders or picks elements; ``None``: this is no such."""
    data = call.inputs[0] if call.inputs else None
    if call.node.domain or not isinstance(data, Tensor) or data.known.all() or not data.size:
        return None
    if call.node.op == "TopK" and data.rank == 1 and _whole(call, data.shape[0]):
        numbers = constant(np.arange(data.shape[0]), call.mode.words)
        source, order = object(), join_words(data)
        return [Reordered(item, 0, source, order) for item in (data, numbers)]
    if call.node.op == "NonZero":
        flat = reshape(data, (data.size,))
        places = np.stack(np.unravel_index(np.arange(data.size), data.shape))
        numbers = constant(places, call.mode.words)
        return [Reordered(numbers, 1, object(), join_words(data), flat.bits)]
    return None


def move(call: Call, rule: Rule) -> list[Value] | None:
    """Results of an operator on rows that were moved; ``None``: it may see their order.

    Args:
        call: At least one input is `Reordered`.
        rule: The rule for tensors that were not.
    """
    if call.node.domain:
        return None
    back = _back(call, rule)
    if back is not None:
        return back
    moved = [item for item in call.inputs if isinstance(item, Reordered)]
    first = moved[0]
    one_order = all(item.source is first.source for item in moved)
    if not one_order or any(item.places for item in moved):
        return None
    axes = _axes(call)
    if axes is None:
        return None
    results = rule(_unmoved(call))
    if not all(isinstance(result, Tensor) for result in results):
        return None
    length = first.tensor.shape[first.axis]
    values: list[Value] = []
    for result in results:
        assert isinstance(result, Tensor)  # checked above
        axis = axes(result)
        if axis is None or not 0 <= axis < result.rank or result.shape[axis] != length:
            return None
        values.append(replace(first, tensor=result, axis=axis))
    return values


def _unmoved(call: Call) -> Call:
    inputs: list[Value | None] = [
        item.tensor if isinstance(item, Reordered) else item for item in call.inputs
    ]
    return replace(call, inputs=inputs)


def _whole(call: Call, size: int) -> bool:
    """Whether a sort keeps every element, along the only axis there is."""
    if call.attr("axis", -1) not in (0, -1):
        return False
    count = call.inputs[1].value if call.has(1) and isinstance(call.inputs[1], Tensor) else None
    return count is not None and int(count.reshape(-1)[0]) == size


Axis = Callable[[Tensor], int | None]


def _axes(call: Call) -> Axis | None:
    """Where the axis of the rows is in a result, if the operator treats all rows alike."""
    op, inputs = call.node.op, call.inputs
    if op in _ALIKE:
        return _broadcast(inputs)
    if op == "MatMul":
        return _product(inputs)
    data = inputs[0]
    if op == "Gather" and not isinstance(data, Reordered):
        index = inputs[1]
        if not isinstance(data, Tensor) or not isinstance(index, Reordered):
            return None
        axis = call.attr("axis", 0) % data.rank + index.axis
        return lambda result: axis
    if not isinstance(data, Reordered) or any(isinstance(i, Reordered) for i in inputs[1:]):
        return None
    rank, axis = data.tensor.rank, data.axis
    if op == "Gather":
        index = inputs[1]
        at = call.attr("axis", 0) % rank
        if at == axis or not isinstance(index, Tensor):
            return None
        return lambda result: axis + (index.rank - 1 if at < axis else 0)
    if op == "Transpose":
        perm = list(call.attr("perm", list(reversed(range(rank)))))
        return lambda result: perm.index(axis)
    if op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return lambda result: _regrouped(data, result)
    if op in ("Softmax", "LayerNormalization", "RMSNormalization"):
        at = call.attr("axis", -1) % rank
        last = axis < at if op != "Softmax" else axis != at
        return (lambda result: axis) if last and call.opset >= 13 else None
    if op == "Expand":
        return lambda result: result.rank + axis - rank
    if op in ("Slice", "Split"):
        # What is cut along the rows' own axis has another length, or the rule would see places.
        cut = call.attr("axis", 0) if op == "Split" else call.ints(3, "axes")
        cuts = [cut] if isinstance(cut, int) else cut
        if cuts is None or any(at % rank == axis for at in cuts):
            return None
        return lambda result: axis
    return None


def _broadcast(inputs: Sequence[Value | None]) -> Axis | None:
    """Elementwise: rows lie side by side, and what is not moved is the same for all of them."""
    ranks = [item.axis - item.tensor.rank for item in inputs if isinstance(item, Reordered)]
    place = ranks[0]
    if any(other != place for other in ranks):
        return None
    for item in inputs:
        if isinstance(item, Tensor) and item.rank >= -place and item.shape[place] != 1:
            return None
    return lambda result: result.rank + place


def _product(inputs: Sequence[Value | None]) -> Axis | None:
    """Rows of the left factor, or of both where each has a matrix of its own."""
    left, right = inputs
    if not isinstance(left, Reordered):
        return None
    place = left.axis - left.tensor.rank
    if isinstance(right, Reordered):
        same = right.axis - right.tensor.rank == place
        return (lambda result: result.rank + place) if same and place < -2 else None
    rank = right.rank if isinstance(right, Tensor) else 0
    if place == -1 or rank < 2 or (place < -2 and rank >= -place):
        return None
    return lambda result: result.rank + place


def _regrouped(data: Reordered, result: Tensor) -> int | None:
    """The axis that alone holds the rows after the same elements were given another shape."""
    old, new = data.tensor.shape, result.shape
    for before, after in axis_groups(old, new):
        if data.axis in before:
            alone = all(old[at] == 1 for at in before if at != data.axis)
            found = [at for at in after if new[at] == old[data.axis]]
            return found[0] if alone and len(found) == 1 else None
    return None


def _back(call: Call, rule: Rule) -> list[Value] | None:
    """Rows that return to where they came from, and the inverse of an order."""
    op, inputs = call.node.op, call.inputs
    if op == "Gather" and isinstance(inputs[0], Reordered) and isinstance(inputs[1], Reordered):
        data, index = inputs[0], inputs[1]
        at = call.attr("axis", 0) % data.tensor.rank
        if index.places and index.source is data.source and at == data.axis and not data.places:
            return [data.tensor] if index.tensor.rank == 1 and data.picked is None else None
        return None
    if op == "TopK" and isinstance(inputs[0], Reordered):
        numbers = inputs[0]
        rising = not call.attr("largest", 1) and _numbers(numbers)
        if rising and _whole(call, numbers.tensor.shape[0]):
            return [numbers.tensor, _inverse(numbers)]
        return None
    if op in ("ScatterElements", "ScatterND") and isinstance(inputs[1], Reordered):
        return _scattered(call, rule)
    return None


def _numbers(item: Reordered) -> bool:
    """Whether it says of each row where it came from."""
    value = item.tensor.value
    return (
        value is not None
        and item.picked is None
        and not item.places
        and np.array_equal(value.reshape(-1), np.arange(value.size))
    )


def _inverse(numbers: Reordered) -> Reordered:
    size = numbers.tensor.size
    nothing = unknown((size,), np.int64, [np.zeros(1, np.uint64) for _ in numbers.order])
    return replace(numbers, tensor=nothing, axis=0, places=True)


def _scattered(call: Call, rule: Rule) -> list[Value] | None:
    data, index, updates = call.inputs[0], call.inputs[1], call.inputs[2]
    if not isinstance(data, Tensor) or not isinstance(index, Reordered):
        return None
    adds = call.attr("reduction", "none") != "none"
    if call.node.op == "ScatterND" and index.tensor.rank == 2 and index.tensor.shape[1] == 1:
        counted_by = replace(index, tensor=reshape(index.tensor, index.tensor.shape[:1]))
    else:
        counted_by = index
    if not isinstance(updates, Reordered):
        # The numbers of places, written where each row came from.
        places = updates.value if isinstance(updates, Tensor) else None
        counted = places is not None and np.array_equal(places, np.arange(index.tensor.size))
        if counted and _numbers(counted_by) and data.shape == (index.tensor.size,) and not adds:
            return [_inverse(counted_by)]
        return None
    numbers = index.tensor.value
    last = index.tensor.rank - 1
    along = index.axis != last
    if call.node.op == "ScatterElements":
        along = call.attr("axis", 0) % index.tensor.rank == index.axis
    if not along:
        # Places beside the rows: they stay where the order put them.
        return None
    same = updates.source is index.source and updates.axis == index.axis
    if numbers is None or not same or index.places or updates.places:
        return None
    if not adds and not _apart(call, index, numbers):
        # Of two rows at one place the later one stays, and which that is, the order decides.
        return None
    (result,) = rule(_unmoved(call))
    if not isinstance(result, Tensor):
        return None
    if index.picked is None:
        return [result]
    return [_some(call, rule, data, result, index, updates)]


def _apart(call: Call, index: Reordered, numbers: Array) -> bool:
    """Whether no two rows are written to one place."""
    rows = np.moveaxis(numbers, index.axis, 0).reshape(numbers.shape[index.axis], -1)
    if call.node.op == "ScatterElements" and not (rows == rows[:, :1]).all():
        return False
    return len(np.unique(rows, axis=0)) == len(rows)


def _some(
    call: Call, rule: Rule, data: Tensor, result: Tensor, index: Reordered, updates: Reordered
) -> Tensor:
    """`result`, where each row may be written or not, as what picks it says."""
    assert index.picked is not None  # of rows that are picked
    shape = [1] * updates.tensor.rank
    shape[updates.axis] = updates.tensor.shape[updates.axis]
    picks = [plane.reshape(-1) for plane in index.picked]
    whole = [np.broadcast_to(plane, (shape[updates.axis],)).reshape(shape) for plane in picks]
    asked = unknown(updates.tensor.shape, updates.tensor.dtype, whole)
    plain = _unmoved(call)
    (chosen,) = rule(replace(plain, inputs=[data, plain.inputs[1], asked]))
    assert isinstance(chosen, Tensor)  # as `result` is
    bits = [a | b | c for a, b, c in zip(data.bits, result.bits, chosen.bits, strict=True)]
    known = data.known & result.known & (data.low == result.low)
    return make(result.shape, result.dtype, bits, known, np.where(known, result.low, 0))
