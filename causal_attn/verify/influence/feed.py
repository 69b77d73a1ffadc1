"""Abstract inputs of a call: which axis holds tokens, how many, and which values are fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import InputError
from causal_attn.package.dims import DimExpression
from causal_attn.verify.influence.graph import Graph
from causal_attn.verify.influence.registry import Mode
from causal_attn.verify.influence.tensor import (
    Array,
    Unshaped,
    Value,
    constant,
    no_bits,
    unknown,
)

__all__ = ["Axes", "Known", "Values", "bind", "feed", "one_each", "ones", "positions"]

Values = Callable[[tuple[int, ...], int, int], NDArray[Any]]
"""``(shape, token axis or -1, past) -> values`` of an input whose values are fixed."""

Known = Values | NDArray[Any] | float | int | bool


def ones(shape: tuple[int, ...], axis: int, past: int) -> NDArray[Any]:
    """An attention mask without padding."""
    return np.ones(shape, np.int64)


def positions(shape: tuple[int, ...], axis: int, past: int) -> NDArray[Any]:
    """Position ids of new tokens that follow the past: ``past, past + 1, …`` along the axis."""
    dims = [shape[axis] if at == axis % len(shape) else 1 for at in range(len(shape))]
    return np.broadcast_to(np.arange(past, past + shape[axis]).reshape(dims), shape)


@dataclass(frozen=True, slots=True)
class Axes:
    """Token axes of the inputs.

    Attributes:
        tokens: Inputs of new tokens, ``name -> axis``.
        past: Inputs that hold the past alone.
        total: Inputs that hold the past and the new tokens after it.
        batch: Axes of inputs along which the sequences of a batch lie.
        sequences: How many there are where they are followed through the graph, each with all its
            positions; 0: positions are followed.
    """

    tokens: Mapping[str, int]
    past: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    sequences: int = 0

    def of(self, name: str) -> tuple[str, int] | None:
        """``("tokens" | "past" | "total", axis)`` of an input, or ``None``."""
        for kind, axes in (("tokens", self.tokens), ("past", self.past), ("total", self.total)):
            if name in axes:
                return kind, axes[name]
        return None

    def marked(self, name: str, past: int) -> tuple[int, int] | None:
        """The axis of an input whose elements are told apart, and the number of the first."""
        if self.sequences:
            return (self.batch[name], 0) if name in self.batch else None
        role = self.of(name)
        if role is None:
            return None
        return role[1], past if role[0] == "tokens" else 0


def bind(
    graph: Graph, axes: Axes, tokens: int, past: int, dims: Mapping[str, int]
) -> dict[str, int] | None:
    """Sizes of the graph's named dims in a call, or ``None`` where fixed sizes rule it out."""
    sizes = {"tokens": tokens, "past": past, "total": past + tokens}
    bound = dict(dims)
    for name, axis in axes.batch.items() if axes.sequences else ():
        if isinstance(dim := graph.shapes[name][axis], str):
            bound[dim] = axes.sequences
        elif dim != axes.sequences:
            return None
    for name in graph.inputs:
        if (role := axes.of(name)) is None:
            continue
        dim = graph.shapes[name][role[1]]
        size = sizes[role[0]]
        if isinstance(dim, int):
            if dim != size:
                return None
        elif dim:
            bound[dim] = size
    for shape in graph.shapes.values():
        for dim in shape:
            if isinstance(dim, str) and dim.isidentifier():
                bound.setdefault(dim, 1)
    for shape in graph.shapes.values():
        for dim in shape:
            if isinstance(dim, str) and dim and dim not in bound:
                size_of = DimExpression.parse(dim).size(bound)
                if size_of is not None:
                    bound[dim] = size_of
    return bound


def feed(
    graph: Graph,
    axes: Axes,
    tokens: int,
    past: int,
    bound: Mapping[str, int],
    known: Mapping[str, Known],
    mode: Mode,
) -> dict[str, Value]:
    """Every graph input as an abstract tensor; one without a shape is a cause of doubt.

    Raises:
        InputError: A value in `known` has another shape than the input has in this call.
    """
    words = mode.words
    tensors: dict[str, Value] = {}
    for name in graph.inputs:
        if name in graph.stored and axes.of(name) is None and name not in known:
            continue
        role = axes.of(name)
        if name not in graph.shapes:
            bit = mode.doubt(f"input {name!r}: it has no shape")
            tensors[name] = Unshaped(
                tuple((1 << bit >> 64 * word) % 2**64 for word in range(words))
            )
            continue
        shape = []
        for at, dim in enumerate(graph.shapes[name]):
            if role is not None and at == role[1] % len(graph.shapes[name]):
                sizes = {"tokens": tokens, "past": past, "total": past + tokens}
                shape.append(sizes[role[0]])
            elif isinstance(dim, str):
                shape.append(bound.get(dim, 1))
            else:
                shape.append(dim)
        dtype = graph.dtypes.get(name, np.dtype(np.float32))
        if name in known:
            values = _values(name, known[name], tuple(shape), role, past)
            tensors[name] = constant(values.astype(dtype), words)
        elif (marked := axes.marked(name, past)) is None:
            tensors[name] = unknown(shape, dtype, no_bits(len(shape), words))
        else:
            axis, first = marked[0] % len(shape), marked[1]
            bits = one_each(shape[axis], first, words, len(shape), axis)
            tensors[name] = unknown(shape, dtype, bits)
    return tensors


def _values(
    name: str, given: Known, shape: tuple[int, ...], role: tuple[str, int] | None, past: int
) -> Array:
    values = np.asarray(given(shape, role[1] if role else -1, past) if callable(given) else given)
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise InputError(
            f"`known[{name!r}]` must broadcast to the input's shape {list(shape)}, got "
            f"{list(values.shape)}. Give a function of the shape to follow the lengths examined."
        ) from None


def one_each(size: int, first: int, words: int, rank: int, axis: int) -> list[Array]:
    """Planes in which each place along `axis` has a bit of its own, from `first` on."""
    places = np.arange(first, first + size, dtype=np.uint64)
    dims = [size if at == axis else 1 for at in range(rank)]
    one, width = np.uint64(1), np.uint64(64)
    return [
        np.where(places // width == word, one << (places % width), np.uint64(0)).reshape(dims)
        for word in range(words)
    ]
