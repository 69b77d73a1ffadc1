"""Regions in which autocast is off or gradients are set, written into the graph around them.

torch.export keeps the body of ``with torch.autocast(..., enabled=False)``, with which rotary
embeddings and norms guard their precision, as a graph of its own that an operator calls. Attention
in it would not be seen, and nothing outside autocast is changed by switching it off.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from causal_attn.errors import CaptureError

__all__ = ["inline_regions"]

_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_regions(program: ExportedProgram) -> None:
    """Replace every such region in `program` by its nodes, in place, regions in regions too.

    Raises:
        CaptureError: A region switches autocast on: the dtypes that it would choose are not in
            the graph, so that what would be written is another computation.
    """
    graph, module = program.graph, program.graph_module
    while found := _first_region(program):
        if found.target is _AUTOCAST:
            device, dtype, enabled, _, body, *inputs = found.args
            if enabled:
                raise CaptureError(
                    f"`target` must compute in its own dtypes, got a region of torch.autocast to "
                    f"{dtype} on {device}. Leave autocast out and export with the dtype that is "
                    "meant."
                )
        else:
            _, body, *inputs = found.args
        assert isinstance(body, Node)
        _inline(program, found, body, inputs)
    module.delete_all_unused_submodules()
    graph.lint()
    module.recompile()


def _first_region(program: ExportedProgram) -> Node | None:
    regions = (node for node in program.graph.nodes if node.target in (_AUTOCAST, _GRADIENTS))
    return next(regions, None)


def _inline(program: ExportedProgram, call: Node, body: Node, inputs: list[Any]) -> None:
    graph = program.graph
    inner: Any = program.graph_module.get_submodule(str(body.target))
    assert isinstance(inner, GraphModule)
    for node in inner.graph.find_nodes(op="get_attr"):
        # Regions inside this one, by a path that holds outside it.
        node.target = f"{body.target}.{node.target}"
    values = dict(zip(inner.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with graph.inserting_before(call):
        results: Any = graph.graph_copy(inner.graph, values)
    several = isinstance(results, tuple | list)
    for user in list(call.users):
        if several and user.target is operator.getitem:
            _replace(program, user, results[user.args[1]])
    if call.users:
        _replace(program, call, results)
    else:
        graph.erase_node(call)
    if not body.users:
        graph.erase_node(body)


def _replace(program: ExportedProgram, node: Node, value: Node) -> None:
    node.replace_all_uses_with(value)
    program.graph.erase_node(node)
    # Outputs of the program are listed by the names of their nodes.
    program.graph_signature.replace_all_uses(node.name, value.name)
