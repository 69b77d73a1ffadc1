"""ONNX ``RotaryEmbedding`` nodes whose angles are those of one sequence, for a batch of any size.

From opset 23 on torch.onnx writes rotary embeddings as one node and hands it the cosines and sines
that the code computed, ``[1, tokens, features / 2]`` where positions are the same for all
sequences. The operator asks for one row of angles for each sequence
(https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html), and ONNX Runtime refuses a batch of
two.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

__all__ = ["expand_angles"]


def expand_angles(model: ir.Model) -> None:
    """Broadcast cosines and sines over the batch, in place, where there are no position ids.

    Nodes that turn a batch of one size by the same angles share what was broadcast.
    """
    shared: dict[tuple[object, ...], list[ir.Value]] = {}
    for node in list(model.graph.all_nodes()):
        if node.op_type != "RotaryEmbedding" or node.domain not in ("", "ai.onnx"):
            continue
        inputs = node.inputs
        if len(inputs) > 3 and inputs[3] is not None:
            # The angles are then a table of all positions, and rows are looked up in it.
            continue
        key = _angles_of(node)
        if key is not None and key in shared:
            for index, value in enumerate(shared[key], 1):
                node.replace_input_with(index, value)
            continue
        name = node.name or node.outputs[0].name or "rotary"
        ones = ir.node(
            "Constant", [], {"value": ir.tensor(np.array([1, 1], np.int64))}, name=f"{name}_ones"
        )
        batch = ir.node("Shape", [inputs[0]], {"start": 0, "end": 1}, name=f"{name}_batch")
        shape = ir.node(
            "Concat", [batch.outputs[0], ones.outputs[0]], {"axis": 0}, name=f"{name}_shape"
        )
        angles = [
            ir.node("Expand", [inputs[index], shape.outputs[0]], name=f"{name}_{what}")
            for index, what in ((1, "cosines"), (2, "sines"))
        ]
        made = [ones, batch, shape, *angles]
        for one in made:
            one.outputs[0].name = one.name
        graph = node.graph
        assert graph is not None  # every node that a model lists lies in a graph
        graph.insert_before(node, made)
        for index, angle in enumerate(angles, 1):
            node.replace_input_with(index, angle.outputs[0])
        if key is not None:
            shared[key] = [angle.outputs[0] for angle in angles]


def _angles_of(node: ir.Node) -> tuple[object, ...] | None:
    """The graph, the size of the batch and the angles of `node`; ``None``: the size is unknown."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if shape is None or (not isinstance(shape[0], int) and shape[0].value is None):
        return None
    return (node.graph, shape[0], node.inputs[1], node.inputs[2])
