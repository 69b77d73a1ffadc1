"""Which names a node reads, and nodes in an order in which each comes after what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from causal_attn.verify.influence.graph import Graph, Node
from causal_attn.verify.node_order import node_order

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

    See `node_order`; those on a cycle come last.
    """
    for node in nodes:
        for value in node.attributes.values():
            if isinstance(value, Graph):
                value.nodes = in_order(value.nodes)
    order = node_order([names_read(node) for node in nodes], [node.outputs for node in nodes])
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
