"""Bounds on integer inputs, read off the graph: ids index a table, and the table has rows."""

from __future__ import annotations

import onnx

__all__ = ["integer_bounds"]

# Where ids go in, and where the table is, by operator.
_TABLES = {
    "Gather": (1, 0),
    "GatherBlockQuantized": (1, 0),
    "EmbedLayerNormalization": (0, 2),
}
_SAME_VALUES = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Clip"}


def integer_bounds(graph: onnx.GraphProto) -> dict[str, tuple[int, int]]:
    """Low and high (exclusive) of every integer input that indexes a table of the graph.

    The smallest table counts where an input indexes several.
    """
    rows = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        # Tables that are dequantized or turned around before they are indexed.
        if node.op_type in ("DequantizeLinear", "Identity", "Cast") and node.input[0] in rows:
            rows.setdefault(node.output[0], rows[node.input[0]])
        elif node.op_type == "Transpose" and node.input[0] in rows:
            rows.setdefault(node.output[0], tuple(reversed(rows[node.input[0]])))
    bounds: dict[str, tuple[int, int]] = {}
    for value in graph.input:
        carried = {value.name}
        for node in graph.node:
            if not node.input:
                continue
            if node.op_type in _SAME_VALUES and node.input[0] in carried:
                carried.add(node.output[0])
            ids, table = _TABLES.get(node.op_type, (0, 0))
            if node.op_type not in _TABLES or len(node.input) <= max(ids, table):
                continue
            if node.input[ids] in carried and node.input[table] in rows:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                if node.op_type == "GatherBlockQuantized":
                    axis = next((a.i for a in node.attribute if a.name == "gather_axis"), 0)
                size = rows[node.input[table]][axis]
                low, high = bounds.get(value.name, (0, size))
                bounds[value.name] = (low, min(high, size))
    return bounds
