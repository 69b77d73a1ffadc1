"""Views of what attention returns, written so that they hold whatever its strides are.

torch's kernel returns attention in the layout that its inputs have, and a traced ``view`` counts
on that: ``y.transpose(1, 2).contiguous()`` was contiguous already and left no trace. The op, and
every form of it, returns another layout. ``reshape`` is the view where there is one, and a copy
where there is none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

__all__ = ["loosen_views"]

_aten = torch.ops.aten


def loosen_views(program: ExportedProgram, attention: Collection[Any]) -> None:
    """Turn views of results of the ops `attention` into reshapes, in place.

    Strides that the nodes of `program` are known to have become those of the new graph.
    """
    graph = program.graph
    behind: set[Node] = set()
    for node in list(graph.nodes):
        if node.target in attention or not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
            if node.op == "call_function" and node.target not in attention:
                _loosen(graph, node)
                _renew(node)


def _loosen(graph: Graph, node: Node) -> None:
    if node.target in (_aten.view.default, _aten._unsafe_view.default):
        node.target = _aten.reshape.default
    elif node.target in (_aten.view_as.default, _aten.unflatten.int):
        arguments: tuple[Any, ...] = node.args
        source = arguments[0]
        with graph.inserting_before(node):
            if node.target is _aten.view_as.default:
                sizes = _sizes(graph, arguments[1])
            else:
                dim, parts = arguments[1:3]
                sizes = _sizes(graph, source)
                at = dim % len(sizes)
                sizes[at : at + 1] = parts
        node.target, node.args = _aten.reshape.default, (source, sizes)


def _sizes(graph: Graph, tensor: Any) -> list[Any]:
    """The shape of `tensor`: numbers, and nodes where it is dynamic."""
    sizes: list[Any] = []
    for axis, size in enumerate(tensor.meta["val"].shape):
        if isinstance(size, torch.SymInt):
            node = graph.call_function(_aten.sym_size.int, (tensor, axis))
            node.meta["val"] = size
            sizes.append(node)
        else:
            sizes.append(size)
    return sizes


def _renew(node: Node) -> None:
    """Run `node` on the fake tensors of its arguments, whose strides may be other ones now."""
    old = node.meta.get("val")
    tensors = [leaf for leaf in tree_leaves(old) if isinstance(leaf, Tensor)]
    # Sizes that depend on data would get new symbols, which nothing else knows.
    if tensors and not any(free_unbacked_symbols(tensor) for tensor in tensors):
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
