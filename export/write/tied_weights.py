"""A matrix that a graph holds twice, once as it is and once turned around, is stored once.

A language model whose embedding is also its last matrix comes out of the optimizer so: the
transpose before the product is computed ahead of time. Here it is written as a node again, which
ONNX Runtime computes ahead of time itself, when it loads the model.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

__all__ = ["store_once"]

_SMALLEST_BYTES = 1024
"""Below this two matrices may be equal by chance, and nothing is won."""


def store_once(model: ir.Model) -> None:
    """Replace every initializer that is another's transpose by a ``Transpose`` of it, in place."""
    graph = model.graph
    matrices = [
        value
        for value in graph.initializers.values()
        if value.const_value is not None
        and len(value.const_value.shape) == 2
        and value.const_value.nbytes >= _SMALLEST_BYTES
    ]
    kept: list[ir.Value] = []
    for value in matrices:
        other = next((one for one in kept if _turned(one, value)), None)
        if other is None:
            kept.append(value)
            continue
        # Gather reads rows where they lie; the product is what takes its matrix either way.
        source, copy = (value, other) if _is_looked_up(value) else (other, value)
        node = ir.node("Transpose", [source], {"perm": [1, 0]}, name=f"{copy.name}_turned")
        node.outputs[0].name = f"{copy.name}_turned"
        graph.insert_before(graph[0], node)
        copy.replace_all_uses_with(node.outputs[0])
        graph.initializers.pop(copy.name or "")
        if source is value:
            kept[kept.index(other)] = value


def _turned(one: ir.Value, other: ir.Value) -> bool:
    left, right = one.const_value, other.const_value
    assert left is not None  # only such values are compared
    assert right is not None
    same = left.dtype == right.dtype and tuple(left.shape) == tuple(right.shape)[::-1]
    return same and np.array_equal(left.numpy(), right.numpy().T)


def _is_looked_up(value: ir.Value) -> bool:
    return any(use.node.op_type == "Gather" for use in value.uses())
