"""Nodes that a graph can do without: repetitions, and reshapes of what was just reshaped.

Each node costs ONNX Runtime some microseconds, which at one new token is as much as a small
product. Of a decoder, cosines and sines are written once a layer, and every change from heads to
rows of a group is two reshapes in a row.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

__all__ = ["drop_repeated_nodes"]


def drop_repeated_nodes(model: ir.Model) -> None:
    """Compute equal things once, and reshape once where it is done twice in a row, in place."""
    CommonSubexpressionEliminationPass()(model)
    for node in model.graph:
        _reshape_the_first(node)
    RemoveUnusedNodesPass()(model)


def _reshape_the_first(node: ir.Node) -> None:
    """Let `node`, a ``Reshape`` of a ``Reshape``, read what the other one reads."""
    if not _is_reshape(node):
        return
    # Without `allowzero` a zero in the shape copies a size of what is reshaped.
    if not node.attributes.get_int("allowzero", 0):
        return
    given = node.inputs[0]
    before = None if given is None else given.producer()
    while before is not None and _is_reshape(before):
        node.replace_input_with(0, before.inputs[0])
        given = before.inputs[0]
        before = None if given is None else given.producer()


def _is_reshape(node: ir.Node) -> bool:
    return node.op_type == "Reshape" and node.domain in ("", "ai.onnx")
