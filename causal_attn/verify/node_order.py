"""An order of nodes in which each comes after what it reads.

ONNX wants files to be in order; ONNX Runtime sorts a graph when it loads it, so files that are not
are in use: its own float16 converter writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush

import onnx

__all__ = ["node_order", "sort_model"]


def node_order(reads: Sequence[Collection[str]], writes: Sequence[Collection[str]]) -> list[int]:
    """Indices of nodes, each after the writers of what it reads.

    Nodes that are in order keep it. Those on a cycle come last, as they are: nothing can put them
    in order.

    Args:
        reads: The names each node reads, in its bodies too.
        writes: The names each node writes.
    """
    writer = {name: at for at, names in enumerate(writes) for name in names if name}
    before = [
        {writer[name] for name in names if name in writer} - {at} for at, names in enumerate(reads)
    ]
    if all(not earlier or max(earlier) < at for at, earlier in enumerate(before)):
        return list(range(len(reads)))
    after: list[list[int]] = [[] for _ in reads]
    for at, earlier in enumerate(before):
        for other in earlier:
            after[other].append(at)
    waits = [len(earlier) for earlier in before]
    ready = [at for at, count in enumerate(waits) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        at = heappop(ready)
        order.append(at)
        for other in after[at]:
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, other)
    return order + [at for at, count in enumerate(waits) if count]


def sort_model(model: onnx.ModelProto) -> None:
    """Put the nodes of a model in order, in its functions and in the bodies of nodes too."""
    _sort(model.graph)
    for function in model.functions:
        _sort(function)


def _sort(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _sort(body)
    order = node_order([_reads(node) for node in graph.node], [n.output for n in graph.node])
    if order != list(range(len(order))):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes[at] for at in order)


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names a node reads; names inside of a body may be among them, which no other node writes."""
    names = set(node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            names.update(value.name for value in body.output)
            for inner in body.node:
                names |= _reads(inner)
    return names
