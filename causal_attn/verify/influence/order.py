"""Which names a node reads, and nodes in an order in which each comes after what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from causal_attn.verify.influence.graph import Graph, Node

__all__ = ["in_order", "names_read"]


def names_read(node: Node) -> list[str]:
    """Names a node reads: its inputs, and what its bodies take from around them."""
    names = [name for name in node.inputs if name]
    for value in node.attributes.values():
        if isinstance(value, Graph):
            names.extend(name for name in _free(value) if name not in names)
    return names


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """`nodes` sorted so that each comes after the writers of what it reads, in bodies too.

    ONNX Runtime sorts a graph when it loads it, so files out of order are in use. Nodes that are
    in order keep it. Those on a cycle come last, as they are: nothing can put them in order.
    """
    for node in nodes:
        for value in node.attributes.values():
            if isinstance(value, Graph):
                value.nodes = in_order(value.nodes)
    writer = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
    before = [
        {writer[name] for name in names_read(node) if name in writer} - {at}
        for at, node in enumerate(nodes)
    ]
    if all(not earlier or max(earlier) < at for at, earlier in enumerate(before)):
        return list(nodes)
    after: list[list[int]] = [[] for _ in nodes]
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
    order += [at for at, count in enumerate(waits) if count]
    return [nodes[at] for at in order]


def _free(graph: Graph) -> Iterator[str]:
    bound = {*graph.inputs, *graph.stored}
    for node in graph.nodes:
        bound.update(node.outputs)
    for node in graph.nodes:
        for name in names_read(node):
            if name not in bound:
                yield name
    yield from (name for name in graph.outputs if name not in bound)
