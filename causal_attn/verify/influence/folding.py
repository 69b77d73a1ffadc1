"""Nodes computed outright, by onnx's reference evaluator, where all of their inputs are known."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from causal_attn.verify.influence.graph import Graph
from causal_attn.verify.influence.registry import Call
from causal_attn.verify.influence.tensor import Tensor, Value, constant

__all__ = ["filled_proto", "folded"]

_MOST_FOLDED = 1 << 22
"""Elements of known inputs above which an operator is not computed outright."""


def filled_proto(call: Call) -> NodeProto:
    """The node with what the function around it gives and leaves out filled in."""
    references = [item for item in call.node.proto.attribute if item.ref_attr_name]
    absent = [at for at, value in enumerate(call.inputs) if value is None and call.node.inputs[at]]
    if not references and not absent:
        return call.node.proto
    proto = NodeProto()
    proto.CopyFrom(call.node.proto)
    for at in absent:
        proto.input[at] = ""
    for item in references:
        proto.attribute.remove(item)
        if item.name in call.attributes:
            value = call.attributes[item.name]
            proto.attribute.append(onnx.helper.make_attribute(item.name, value))
    return proto


def folded(call: Call) -> list[Value] | None:
    """Outputs computed outright, where every input is known."""
    node = call.node
    if node.domain:
        return None
    feeds = {}
    total = 0
    for name, tensor in zip(node.inputs, call.inputs, strict=True):
        if tensor is None:
            continue
        value = tensor.value if isinstance(tensor, Tensor) else None
        if value is None:
            return None
        total += value.size
        feeds[name] = value
    if total > _MOST_FOLDED or any(isinstance(v, Graph) for v in call.attributes.values()):
        return None
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)
        )
        for name, value in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.outputs if name]
    graph = onnx.helper.make_graph([filled_proto(call)], "fold", infos, results)
    imports = [onnx.helper.make_opsetid("", call.opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            outputs = ReferenceEvaluator(model).run(None, feeds)
    # The evaluator raises what its operators raise, under many types: an index of an axis
    # without rows is an IndexError, which ONNX Runtime never meets in a branch not taken.
    except Exception:  # noqa: BLE001
        return None
    values = iter(outputs)
    arrays = [np.asarray(next(values)) if name else np.zeros(()) for name in node.outputs]
    return [constant(array, call.mode.words) for array in arrays]
