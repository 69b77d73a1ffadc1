"""The oldest ONNX Runtime that runs a graph, for its contract."""

from __future__ import annotations

import onnx_ir as ir

from causal_attn.export.forms.blocked_gqa import OLDEST_ONNXRUNTIME
from causal_attn.machine.release import OLDEST

__all__ = ["oldest_onnxruntime"]


def oldest_onnxruntime(model: ir.Model) -> str:
    """``major.minor``: newer than any other where `model` has attention over a shared cache."""
    for node in model.graph.all_nodes():
        if node.op_type == "GroupQueryAttention":
            has_past = len(node.inputs) > 3 and node.inputs[3] is not None
            present = node.outputs[1:3]
            if has_past and not any(value.name for value in present):
                return OLDEST_ONNXRUNTIME
    return OLDEST
