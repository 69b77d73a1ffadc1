"""Numbers in a graph at which it may change with its length: tables, buffers, comparisons.

A rotary table that is exchanged above 4,096 positions compares a length with 4,096; a ring buffer
of 48 slots takes positions modulo 48; a mask cut out of a buffer of 1,024 rows has a weight of
that size. Checks that run a graph at a few lengths add those on both sides of such numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["GraphLengths", "graph_lengths"]

_COMPARING = {
    "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Min", "Max", "Clip", "Mod",
}  # fmt: skip
_COUNTING = {"Div", "Sub", "Add"}
"""These compare only where they count in integers; among floats they are arithmetic."""
_SHAPING = {"Expand", "Reshape", "ConstantOfShape", "Tile", "Slice", "Pad"}
_LOOKING_UP = {"Gather", "Slice", "Trilu"}
_SAME = {"Cast", "Unsqueeze", "Squeeze", "Identity", "Reshape", "Concat", "CastLike"}

_FEW = 8
"""Elements of a constant that may be a length; longer ones are data."""
_LEAST, _MOST = 2, 1 << 17


@dataclass(frozen=True, kw_only=True)
class GraphLengths:
    """Numbers of a graph that may be lengths, each ascending and once.

    Attributes:
        compared: Something is compared with them, or taken modulo them: the graph may branch
            there.
        sizes: Of tables, of buffers and in shapes: something may end there.
    """

    compared: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Those of both kinds, ascending."""
        return tuple(sorted({*self.compared, *self.sizes}))


def graph_lengths(model: onnx.ModelProto) -> GraphLengths:
    """The lengths in `model`, in the graphs inside its nodes and in its functions too."""
    compared: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for nodes, tensors in _bodies(model):
        shapes = {tensor.name: tuple(tensor.dims) for tensor in tensors}
        values = {tensor.name: _numbers(tensor) for tensor in tensors if _is_short(tensor)}
        for node in nodes:
            if node.op_type == "Constant":
                values[node.output[0]] = _of_constant(node)
                continue
            given = [values.get(name, ()) for name in node.input]
            if node.op_type in _SAME and any(given):
                values[node.output[0]] = tuple(n for some in given for n in some)[:_FEW]
            counted = node.op_type in _COUNTING and any(
                isinstance(number, int) for some in given for number in some
            )
            if node.op_type in _COMPARING or counted:
                compared.update(_lengths(given))
            elif node.op_type in _SHAPING:
                sizes.update(_lengths(given))
            if node.op_type in _LOOKING_UP and node.input and node.input[0] in shapes:
                dims = shapes[node.input[0]]
                sizes.update(_lengths([dims[:1] if node.op_type == "Gather" else dims]))
    return GraphLengths(
        compared=tuple(sorted(compared)),
        sizes=tuple(sorted(set(sizes) - set(compared))),
    )


Numbers = tuple[int | float, ...]


def _lengths(given: Iterable[Numbers]) -> Iterator[int]:
    for numbers in given:
        for number in numbers:
            if _LEAST <= number <= _MOST and number == int(number):
                yield int(number)


def _bodies(
    model: onnx.ModelProto,
) -> Iterator[tuple[list[onnx.NodeProto], list[onnx.TensorProto]]]:
    """Nodes and weights of each graph; a body is given the weights of those around it."""
    yield from _inside(list(model.graph.node), list(model.graph.initializer))
    for function in model.functions:
        yield from _inside(list(function.node), [])


def _inside(
    nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto]
) -> Iterator[tuple[list[onnx.NodeProto], list[onnx.TensorProto]]]:
    yield nodes, tensors
    for node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                if graph.node:
                    yield from _inside(list(graph.node), [*tensors, *graph.initializer])


def _is_short(tensor: onnx.TensorProto) -> bool:
    count = int(np.prod(tensor.dims)) if tensor.dims else 1
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return count <= _FEW and not external and tensor.data_type != onnx.TensorProto.STRING


def _numbers(tensor: onnx.TensorProto) -> Numbers:
    array = numpy_helper.to_array(tensor).reshape(-1)
    return tuple(_number(value) for value in array.tolist())


def _number(value: object) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # NaN and infinities are lengths of nothing, and a truth value is no number.
    finite = isinstance(value, float) and np.isfinite(value)
    return float(value) if finite and isinstance(value, float) else 0.0


def _of_constant(node: onnx.NodeProto) -> Numbers:
    values: Mapping[str, onnx.AttributeProto] = {item.name: item for item in node.attribute}
    if "value" in values:
        tensor = values["value"].t
        return _numbers(tensor) if _is_short(tensor) else ()
    if "value_int" in values:
        return (int(values["value_int"].i),)
    if "value_ints" in values:
        return tuple(values["value_ints"].ints)[:_FEW]
    if "value_float" in values:
        return (_number(values["value_float"].f),)
    return ()
