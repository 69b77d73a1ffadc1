"""The way a position of the future takes to an output, one node at a time.

A step back from an element asks, of each input of the node that wrote it: does the position still
arrive if it is left in this input alone? Then the same of half of that input's elements, until one
element is left. The rules answer, so the path is as exact as the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.graph import Graph, Node
from causal_attn.verify.influence.order import names_read
from causal_attn.verify.influence.tensor import Array, Reordered, Tensor, Value, no_bits

__all__ = ["Path", "in_place", "plane_of", "reached_from", "trace"]


@dataclass(frozen=True, slots=True)
class Path:
    """A way through a graph.

    Attributes:
        steps: In words: the input element, then a node and the element it leads to.
        places: The same as tensors and elements of them.
        nodes: The nodes with the input that each is reached by: one less, or the first step is a
            node too.
        crossing: Which of `steps` takes the position to a row that is not its own; ``None``: it
            is not seen where.
    """

    steps: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[int, ...]], ...] = ()
    nodes: tuple[tuple[Node, str], ...] = ()
    crossing: int | None = None


def trace(frame: Frame, graph: Graph, output: str, axis: int, row: int, bit: int) -> Path:
    """Path of `bit` to row `row` along `axis` of an output, from the input on.

    Args:
        frame: The evaluated graph.
        graph: The graph that was evaluated in `frame`.
        output: Name of the output.
        axis: Its token axis.
        row: Row that is reached.
        bit: Position that reaches it.

    Returns:
        The path, which is empty where nothing is known of the output's elements.
    """
    writers = {name: node for node in graph.nodes for name in node.outputs if name}
    tensor = _in_any_order(frame.values[output])
    if not isinstance(tensor, Tensor):
        return Path()
    plane = plane_of(tensor, bit)
    reached = np.argwhere(np.broadcast_to(plane, _touched(tensor.shape, plane, axis)))
    name, element = output, next(tuple(p) for p in reached if p[axis] == row)
    steps: list[str] = []
    places: list[tuple[str, tuple[int, ...]]] = []
    nodes: list[tuple[Node, str]] = []
    held: list[bool] = []
    while (node := writers.get(name)) is not None:
        steps.append(f"{node} -> {_element(name, element)}")
        places.append((name, element))
        held.append(_holds(frame.lookup(name), element, bit, frame.mode.positions))
        found = _step(frame, graph, node, name, element, bit)
        if found is None:
            break
        nodes.append((node, found[0]))
        name, element = found
    else:
        steps.append(_element(name, element))
        places.append((name, element))
        held.append(True)
    held.reverse()
    lost = [at for at in range(1, len(held)) if held[at - 1] and not held[at]]
    return Path(
        steps=tuple(steps[::-1]),
        places=tuple(places[::-1]),
        nodes=tuple(nodes[::-1]),
        crossing=lost[-1] if lost else None,
    )


def _in_any_order(value: Value) -> Value:
    """Rows that data moved may stand anywhere; a path goes from one that they may stand in."""
    return value.loose() if isinstance(value, Reordered) else value


def _holds(value: Value, element: tuple[int, ...], bit: int, marks: int) -> bool:
    """Whether the element still stands at the place of its position, along some axis."""
    return isinstance(value, Tensor) and bool(in_place(value, element, bit, marks))


def in_place(value: Tensor, element: tuple[int, ...], bit: int, marks: int) -> list[int]:
    """Axes along which the element stands at the place of position `bit`.

    Rows are the last ones of the call, as everywhere, and what is padded is padded at the end. An
    axis along which nothing differs, such as that of features, has no places.
    """
    places = zip(element, value.shape, plane_of(value, bit).shape, strict=True)
    return [
        axis
        for axis, (at, size, varies) in enumerate(places)
        if varies > 1 and max(marks - size, 0) + at == bit
    ]


def reached_from(
    frame: Frame, graph: Graph, node: Node, name: str, source: str, bits: Sequence[Array]
) -> Value:
    """What `node` writes as `name` where `bits` of the tensor `source` are all that reaches it."""
    values = {item: _cleared(_in_any_order(frame.lookup(item))) for item in names_read(node)}
    tensor = values[source]
    assert isinstance(tensor, Tensor)  # the caller offers tensors only
    inner = frame.overridden({**values, source: replace(tensor, bits=tuple(bits))})
    inputs = [inner.lookup(item) if item else None for item in node.inputs]
    outputs = inner.evaluate(node, inputs, graph)
    return _in_any_order(outputs[node.outputs.index(name)])


def _step(
    frame: Frame, graph: Graph, node: Node, name: str, element: tuple[int, ...], bit: int
) -> tuple[str, tuple[int, ...]] | None:
    sources = {source: _in_any_order(frame.lookup(source)) for source in names_read(node)}

    def arrives(source: str, kept: Array) -> bool:
        tensor = sources[source]
        assert isinstance(tensor, Tensor)  # the caller offers tensors only
        bits = list(_cleared_planes(tensor))
        bits[bit // 64] = kept.astype(np.uint64) << np.uint64(bit % 64)
        result = reached_from(frame, graph, node, name, source, bits)
        if not isinstance(result, Tensor):
            return False
        plane = plane_of(result, bit)
        at = tuple(i if dim != 1 else 0 for i, dim in zip(element, plane.shape, strict=True))
        return bool(plane[at])

    # The way through values reads better than the way through conditions on them.
    tensors = [(name, value) for name, value in sources.items() if isinstance(value, Tensor)]
    for source, value in sorted(tensors, key=lambda item: item[1].dtype == bool):
        kept = plane_of(value, bit)
        if not kept.any() or not arrives(source, kept):
            continue
        while kept.sum() > 1:
            places = np.flatnonzero(kept)
            half = np.zeros_like(kept)
            np.put(half, places[: len(places) // 2], True)
            kept = half if arrives(source, half) else kept & ~half
        return source, tuple(int(i) for i in np.argwhere(kept)[0])
    return None


def plane_of(tensor: Tensor, bit: int) -> Array:
    """Which elements position `bit` reaches, as a plane."""
    plane: Array = (tensor.bits[bit // 64] >> np.uint64(bit % 64)) & np.uint64(1)
    return plane.astype(bool)


def _touched(shape: tuple[int, ...], plane: Array, axis: int) -> list[int]:
    return [shape[at] if at == axis else dim for at, dim in enumerate(plane.shape)]


def _cleared(value: Value) -> Value:
    if not isinstance(value, Tensor):
        return value
    return replace(value, bits=_cleared_planes(value))


def _cleared_planes(tensor: Tensor) -> tuple[Array, ...]:
    return no_bits(tensor.rank, len(tensor.bits))


def _element(name: str, element: tuple[int, ...]) -> str:
    return f"{name}{[int(i) for i in element]}"
