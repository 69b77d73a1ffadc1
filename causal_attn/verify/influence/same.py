"""Where two tensors hold one and the same element of a third, so that they are equal there.

Documents packed into one sequence are told apart by ``number[:, None] == number[None, :]``. What
the numbers are is data; that each equals itself is not, and that is the diagonal which keeps every
row of the mask open. Both sides are followed back through nodes that move elements, or map each
alone, to the tensor they share; its elements are then numbered and moved forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from causal_attn.verify.influence.graph import Node
from causal_attn.verify.influence.tensor import Array, Tensor, Value, constant

__all__ = ["same_elements"]

_MOVES = {
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
_MAPS = {"Abs", "Cast", "Ceil", "Floor", "Neg", "Not", "Round", "Sign"}
"""One element of the result for each of the input; equal elements have equal results."""
_MOST_ELEMENTS = 1 << 20

Lookup = Callable[[str], Value]
Move = Callable[[Node, Sequence[Value | None]], Sequence[Value]]


def same_elements(
    one: str, other: str, writers: Mapping[str, Node], lookup: Lookup, move: Move
) -> Array | None:
    """Plane in which `one` and `other`, broadcast, hold the same element; ``None``: nowhere.

    Args:
        one: Name of a tensor.
        other: Name of a tensor.
        writers: The node that wrote each name.
        lookup: The value of a name.
        move: Applies a node that moves elements to numbered ones.
    """
    ways = [_way(name, writers, lookup) for name in (one, other)]
    names = [[one], [other]]
    for way, passed in zip(ways, names, strict=True):
        passed.extend(node.inputs[0] for node in way)
    shared = next((name for name in names[0] if name in names[1]), None)
    root = lookup(shared) if shared is not None else None
    if shared is None or not isinstance(root, Tensor) or not 0 < root.size <= _MOST_ELEMENTS:
        return None
    numbered = constant(np.arange(root.size).reshape(root.shape), len(root.bits))
    moved = []
    for way, passed in zip(ways, names, strict=True):
        value: Value = numbered
        for node in reversed(way[: passed.index(shared)]):
            if node.op not in _MAPS:
                (value, *_) = move(node, [value, *map(lookup, node.inputs[1:])])
        places = value.value if isinstance(value, Tensor) else None
        if places is None:
            return None
        moved.append(places)
    return np.asarray(moved[0] == moved[1])


def _way(name: str, writers: Mapping[str, Node], lookup: Lookup) -> list[Node]:
    """Nodes that moved the elements of `name`, from the last one back."""
    way: list[Node] = []
    while (node := writers.get(name)) is not None:
        moves = node.op in _MOVES and all(_known(lookup(item)) for item in node.inputs[1:])
        if node.domain or not (moves or node.op in _MAPS):
            break
        way.append(node)
        name = node.inputs[0]
    return way


def _known(value: Value) -> bool:
    return isinstance(value, Tensor) and bool(value.known.all())
