"""A node with its inputs and outputs, as the rules of bounds see it; the rules by operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from causal_attn.verify.influence.bounds.extent import (
    EMPTY,
    UNBOUNDED,
    Extent,
    hull,
    known_values,
    with_constants,
)
from causal_attn.verify.influence.graph import Node
from causal_attn.verify.influence.tensor import Array, Tensor, Value

__all__ = ["BOUNDS", "Step", "bound", "extents_of"]


@dataclass(slots=True)
class Step:
    """One node that has been evaluated.

    Attributes:
        node: The node.
        opset: Version of its domain.
        attributes: Its attributes.
        inputs: Values given to it.
        extents: Of the inputs, in the same order.
        outputs: Values it wrote.
        writers: The node that wrote each name of its graph.
        lookup: The value of a name.
    """

    node: Node
    opset: int
    attributes: Mapping[str, Any]
    inputs: Sequence[Value | None]
    extents: Sequence[Extent]
    outputs: Sequence[Value]
    writers: Mapping[str, Node] = field(default_factory=dict)
    lookup: Callable[[str], Value] | None = None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """The optional input is given."""
        return index < len(self.inputs) and isinstance(self.inputs[index], Tensor)

    def tensor(self, index: int) -> Tensor:
        """The tensor at `index`; `LookupError` where there is none."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, Tensor):
            raise LookupError(f"input {index} is no tensor")
        return value

    def output(self, index: int = 0) -> Tensor:
        """The tensor written at `index`; `LookupError` where there is none."""
        value = self.outputs[index]
        if not isinstance(value, Tensor):
            raise LookupError(f"output {index} is no tensor")
        return value

    def values(self, index: int) -> tuple[float, float]:
        """Interval of an input's values, constants included."""
        return with_constants(self.tensor(index), self.extents[index])

    def size(self, index: int) -> float:
        """Largest magnitude of an input's values, constants included."""
        return max(map(abs, self.values(index)))

    def length(self, index: int, axes: Collection[int]) -> float:
        """Bound on the length of an input along `axes`."""
        return self.extents[index].length(self.tensor(index).shape, axes)

    def known(self, index: int) -> Array | None:
        """The values of an input, where all are known."""
        return self.tensor(index).value if self.has(index) else None


Bound = Callable[[Step], Sequence[Extent]]
BOUNDS: dict[tuple[str, str], Bound] = {}


def bound(*names: str, domain: str = "") -> Callable[[Bound], Bound]:
    """Register a rule for operators of one domain."""

    def register(function: Bound) -> Bound:
        for name in names:
            BOUNDS[domain, name] = function
        return function

    return register


def extents_of(step: Step) -> list[Extent]:
    """Extents of the outputs of a node; no bound where no rule applies."""
    rule = BOUNDS.get((step.node.domain, step.node.op))
    count = len(step.outputs)
    known = [isinstance(value, Tensor) and bool(value.known.all()) for value in step.outputs]
    found: Sequence[Extent] = [UNBOUNDED] * count
    if rule is not None and not all(known):
        try:
            with np.errstate(all="ignore"):
                found = rule(step)
        except (LookupError, ValueError, TypeError, ArithmeticError):
            # Inputs that do not fit together, or a shape that nobody knows: no bound.
            found = [UNBOUNDED] * count
    results = []
    for at, value in enumerate(step.outputs):
        extent = found[at] if at < len(found) else UNBOUNDED
        results.append(_completed(value, extent, known[at]))
    return results


def _completed(value: Value, extent: Extent, known: bool) -> Extent:
    """`extent` with the known values that the evaluation put among the data."""
    if not isinstance(value, Tensor):
        return UNBOUNDED
    small = known_values(value)
    if known:
        return small or EMPTY
    if math.isnan(extent.low) or math.isnan(extent.high):
        return UNBOUNDED
    if small is None:
        return extent
    both = hull((extent, small))
    # What a norm says of the data it does not say of values that took its place.
    return both if small.size else extent.within(both.low, both.high)
