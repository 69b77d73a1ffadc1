"""Where the length of an input reaches values, and not only shapes and masks.

A graph may be causal and still say something else of a beginning than of the whole: a rotary table
that switches with the length, a base that follows it, a sum that is divided by the number of
tokens. The tables such graphs compute are known at each length. Where one that meets data has
other numbers at another length, for the same places, the length is in the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.graph import Graph, Node
from causal_attn.verify.influence.tensor import Array, Tensor, Value

__all__ = ["LengthWatch"]


@dataclass(slots=True)
class LengthWatch:
    """Compares what is known in calls of different lengths.

    Attributes:
        past: Calls behind a past of this size are compared.
        nodes: Nodes in which data meets numbers that differ with the length, in their order.
    """

    past: int
    nodes: dict[str, None] = field(default_factory=dict)
    _seen: dict[str, Array] = field(default_factory=dict)

    def see(self, frame: Frame, graph: Graph, past: int) -> None:
        """Compare the values of a call with those of the one before."""
        if past != self.past:
            return
        tables = {
            name: (node, table) for node in graph.nodes for name, table in _tables(frame, node)
        }
        for name, (node, table) in tables.items():
            before = self._seen.get(name)
            if before is not None and not _agree(before, table):
                self.nodes.setdefault(str(node))
        self._seen = {name: table for name, (_, table) in tables.items()}


def _tables(frame: Frame, node: Node) -> list[tuple[str, Array]]:
    """Known numbers and conditions that a node wrote and that meet data in `node`."""
    inputs = [(name, frame.values.get(name)) for name in node.inputs if name]
    if not any(_is_data(value) for _, value in inputs):
        return []
    return [
        (name, np.broadcast_to(value.low, value.shape))
        for name, value in inputs
        if name in frame.writers
        and isinstance(value, Tensor)
        # Whole numbers are shapes and places.
        and value.dtype.kind not in "iu"
        and value.known.all()
    ]


def _is_data(value: Value | None) -> bool:
    return isinstance(value, Tensor) and any(plane.any() for plane in value.bits)


def _agree(one: Array, other: Array) -> bool:
    """Whether two tables have the same numbers at the places that both have."""
    if one.ndim != other.ndim:
        return True
    both = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    floats = one.dtype.kind == "f"
    return np.array_equal(one[both], other[both], equal_nan=floats)
