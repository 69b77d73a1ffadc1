"""Weights stay in torch's memory until they are written; one that is used twice is stored once.

torch.onnx's optimizer turns the matrices of linear layers around ahead of time, each into a copy
that lives until the file is written: a second model in memory. So large weights, and those that
several parts of a model share, are taken out of its sight; what it would have turned around is
turned while it is written, one matrix at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
import torch

__all__ = ["weights_aside"]

_LARGE = 8192
"""Elements up to which the optimizer computes anything ahead of time that it can."""

_SMALLEST_BYTES = 1024
"""Below this nothing is won by storing a tensor once."""

_Place = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]
"""Where a tensor begins in memory and how it lies there."""


@contextmanager
def weights_aside(model: ir.Model) -> Iterator[None]:
    """Inside the block `model` has no values for large and for shared weights; it is changed.

    Afterwards they are back, each once, whatever the block made of the graph. A weight that is
    read only to be turned around is replaced by the turned one.
    """
    held = _shared_once(model.graph)
    for value in held:
        value.const_value = None
    yield
    for value, tensor in held.items():
        value.const_value = tensor
    for node in list(model.graph):
        if node.op_type == "Transpose" and node.domain in ("", "ai.onnx"):
            _turn(model.graph, node, held)


def _shared_once(graph: ir.Graph) -> dict[ir.Value, ir.TensorProtocol]:
    """The weights to put aside; of those that are one tensor, the first is left in `graph`."""
    places: dict[ir.Value, _Place] = {}
    for value in graph.initializers.values():
        tensor = getattr(value.const_value, "raw", None)
        if isinstance(tensor, torch.Tensor) and tensor.nbytes >= _SMALLEST_BYTES:
            places[value] = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    first: dict[_Place, ir.Value] = {}
    for value, place in places.items():
        kept = first.setdefault(place, value)
        if kept is not value and not value.is_graph_output():
            value.replace_all_uses_with(kept)
            graph.initializers.pop(value.name or "")
    held: dict[ir.Value, ir.TensorProtocol] = {}
    for value in first.values():
        tensor = value.const_value
        assert tensor is not None  # only such values have a place
        if tensor.size > _LARGE or len(value.uses()) > 1:
            held[value] = tensor
    return held


def _turn(graph: ir.Graph, node: ir.Node, held: dict[ir.Value, ir.TensorProtocol]) -> None:
    """Replace `node`, a ``Transpose``, by a weight, if it is all that reads one."""
    (source,), (turned,) = node.inputs, node.outputs
    tensor = None if source is None else held.get(source)
    if source is None or tensor is None or len(source.uses()) > 1 or turned.is_graph_output():
        return
    sizes = tensor.shape.numpy()
    axes = node.attributes.get_ints("perm") or range(len(sizes))[::-1]
    shape = ir.Shape([sizes[axis] for axis in axes])
    value = ir.Value(name=turned.name, shape=shape, type=ir.TensorType(tensor.dtype))
    value.const_value = ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(tensor.numpy().transpose(axes)), name=value.name),
        dtype=tensor.dtype,
        shape=shape,
        name=value.name,
    )
    turned.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.initializers.pop(source.name or "")
    graph.register_initializer(value)
