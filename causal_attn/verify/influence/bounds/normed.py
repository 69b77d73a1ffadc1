"""Recognize a norm that is written as arithmetic: ``x / sqrt(mean(x * x) + epsilon)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from causal_attn.verify.influence.graph import Node
from causal_attn.verify.influence.tensor import Tensor, Value

__all__ = ["unit_rows"]

_SAME = ("Cast", "Identity", "CastLike")


class _Search:
    """Looks at the nodes that wrote what a product or quotient reads."""

    def __init__(self, writers: Mapping[str, Node], lookup: Callable[[str], Value]) -> None:
        self.writers, self.lookup = writers, lookup

    def writer(self, name: str, *ops: str) -> Node | None:
        """The node behind `name`, conversions skipped, if it is one of `ops`."""
        node = self.writers.get(self.source(name))
        return node if node is not None and not node.domain and node.op in ops else None

    def source(self, name: str) -> str:
        while (node := self.writers.get(name)) is not None and node.op in _SAME:
            name = node.inputs[0]
        return name

    def number(self, name: str) -> float | None:
        value = self.lookup(name)
        if not isinstance(value, Tensor) or not value.known.all() or value.low.size != 1:
            return None
        return float(value.low.astype(np.float64).reshape(()))

    def square_mean(self, name: str) -> tuple[str, list[int], bool] | None:
        """``(x, axes, mean)`` where `name` is the mean or the sum of squares of x, or more."""
        node = self.writer(name, "Add", "Max", "Clip")
        if node is not None:
            if node.op == "Clip":
                return None if _capped(node) else self.square_mean(node.inputs[0])
            for inner, other in (node.inputs[:2], node.inputs[1::-1]):
                number = self.number(other)
                if number is not None and number >= 0:
                    return self.square_mean(inner)
            return None
        node = self.writer(name, "ReduceMean", "ReduceSum", "ReduceSumSquare")
        if node is None:
            return None
        axes = self._axes(node)
        if axes is None or node.attributes.get("keepdims", 1) != 1:
            return None
        if node.op == "ReduceSumSquare":
            return self.source(node.inputs[0]), axes, False
        square = self.writer(node.inputs[0], "Mul", "Pow")
        if square is None:
            return None
        left = self.source(square.inputs[0])
        twice = self.number(square.inputs[1]) == 2 if square.op == "Pow" else (
            self.source(square.inputs[1]) == left
        )  # fmt: skip
        return (left, axes, node.op == "ReduceMean") if twice else None

    def _axes(self, node: Node) -> list[int] | None:
        value = self.lookup(node.inputs[0])
        if not isinstance(value, Tensor):
            return None
        axes = node.attributes.get("axes")
        if len(node.inputs) > 1 and node.inputs[1]:
            given = self.lookup(node.inputs[1])
            axes = given.value if isinstance(given, Tensor) else None
        if axes is None:
            return None
        return [int(axis) % value.rank for axis in np.asarray(axes).reshape(-1)]

    def root(self, name: str) -> tuple[str, list[int], bool] | None:
        """As `square_mean`, of what `name` is the root of; a length is a root too."""
        node = self.writer(name, "Sqrt", "Pow", "ReduceL2", "Max", "Clip", "Add")
        if node is None:
            return None
        if node.op == "Sqrt":
            return self.square_mean(node.inputs[0])
        if node.op == "Pow":
            half = self.number(node.inputs[1]) == 0.5
            return self.square_mean(node.inputs[0]) if half else None
        if node.op == "ReduceL2":
            axes = self._axes(node)
            kept = node.attributes.get("keepdims", 1) == 1
            return (self.source(node.inputs[0]), axes, False) if axes and kept else None
        if node.op == "Clip":
            return None if _capped(node) else self.root(node.inputs[0])
        for inner, other in (node.inputs[:2], node.inputs[1::-1]):
            number = self.number(other)
            if number is not None and number >= 0:
                return self.root(inner)
        return None

    def inverse_root(self, name: str) -> tuple[str, list[int], bool] | None:
        """As `root`, of what `name` is one over."""
        node = self.writer(name, "Reciprocal", "Pow", "Div")
        if node is None:
            return None
        if node.op == "Reciprocal":
            return self.root(node.inputs[0])
        if node.op == "Pow":
            half = self.number(node.inputs[1]) == -0.5
            return self.square_mean(node.inputs[0]) if half else None
        return self.root(node.inputs[1]) if self.number(node.inputs[0]) == 1 else None


def _capped(node: Node) -> bool:
    """A clip from above makes a divisor smaller than the root it is taken for."""
    return "max" in node.attributes or (len(node.inputs) > 2 and bool(node.inputs[2]))


def unit_rows(
    node: Node, writers: Mapping[str, Node], lookup: Callable[[str], Value]
) -> tuple[float, list[int]] | None:
    """``(length, axes)`` of the rows that a product or quotient normalizes.

    ``x / sqrt(mean(x * x) + epsilon)`` is at most the root of the number of its features long,
    whatever x is, and ``x / sqrt(sum(x * x) + epsilon)`` at most 1.
    """
    search = _Search(writers, lookup)
    ways = [(node.inputs[0], node.inputs[1])]
    if node.op == "Mul":
        ways.append((node.inputs[1], node.inputs[0]))
    for data, factor in ways:
        found = search.root(factor) if node.op == "Div" else search.inverse_root(factor)
        if found is None or search.source(data) != found[0]:
            continue
        value = lookup(data)
        if not isinstance(value, Tensor):
            continue
        count = math.prod(value.shape[axis] for axis in found[1])
        return (math.sqrt(count) if found[2] else 1.0), found[1]
    return None
