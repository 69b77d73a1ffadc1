"""Which outputs hand an input of the past on, with what the call adds to it."""

from __future__ import annotations

from collections.abc import Iterable

from causal_attn.verify.influence.graph import Graph

__all__ = ["carried_inputs"]

_CARRY = {
    "Cast", "Concat", "Expand", "Gather", "Identity", "Reshape", "ScatterElements", "ScatterND",
    "Slice", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
_PRESENT = {
    "Attention": {1: 4, 2: 5},
    "GroupQueryAttention": {1: 3, 2: 4},
    "MultiHeadAttention": {1: 6, 2: 7},
}
"""Outputs of attention operators that continue the input named beside them."""


def carried_inputs(graph: Graph, past: Iterable[str]) -> dict[str, str]:
    """``input -> output`` for every input of the past whose values an output hands on."""
    writers = {name: node for node in graph.nodes for name in node.outputs if name}
    wanted = set(past)
    found: dict[str, str] = {}
    for output in graph.outputs:
        waiting, seen = [output], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in wanted:
                found.setdefault(name, output)
            elif (node := writers.get(name)) is None:
                continue
            elif node.op in _CARRY and not node.domain:
                waiting.extend(node.inputs)
            elif (at := _PRESENT.get(node.op, {}).get(node.outputs.index(name))) is not None:
                waiting.extend(node.inputs[at : at + 1])
    return found
