"""The same graph in float64: the oracle of a model whose source is not at hand.

Every float16, bfloat16 and float32 in the graph becomes float64: inputs, weights, constants, casts
and the graphs inside nodes. onnx's reference evaluator runs it, which follows the operator
specifications in numpy and shares no kernel with ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from causal_attn.errors import PackageError
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.node_order import sort_model
from causal_attn.verify.oracle.operators import EVALUATOR_OPS
from causal_attn.verify.oracle.random_rounding import NodeRounding

__all__ = ["GraphRun", "widen"]

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
_DOUBLE = onnx.TensorProto.DOUBLE

# Attributes that name a dtype. Not ``stash_type``: the evaluator computes norms in the dtype of
# the input whatever it says, and takes no value but float32.
_DTYPE_ATTRIBUTES = {"to", "dtype", "softmax_precision", "output_dtype"}


class GraphRun:
    """An ONNX model run by onnx's reference evaluator: feeds to results, by name.

    Args:
        path: The model; its external data lies beside it.
        wide: Whether to run it in float64.

    Raises:
        PackageError: The evaluator has no implementation of one of its operators.
    """

    def __init__(self, path: Path, *, wide: bool) -> None:
        model = onnx.load(path)
        sort_model(model)
        formats = _float_types(model.graph)
        if wide:
            _widen_model(model)
        _name_outputs(model.graph)
        try:
            self._evaluator = ReferenceEvaluator(model, new_ops=list(EVALUATOR_OPS))
        # The evaluator raises what its operators raise, under many types.
        except Exception as error:  # noqa: BLE001
            raise PackageError(_no_implementation(error)) from None
        default = next(iter(formats.values()), onnx.TensorProto.FLOAT)
        self._rounding = NodeRounding(self._evaluator, formats, default) if wide else None
        self._names = [value.name for value in model.graph.output]
        # The evaluator has arrays of the weights by now; the model need not hold them twice.
        model.graph.ClearField("initializer")

    def __call__(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        try:
            results: Any = self._evaluator.run(None, dict(feeds))
        except Exception as error:  # noqa: BLE001
            raise PackageError(_no_implementation(error)) from None
        return dict(zip(self._names, results, strict=True))

    def rounded(self, feeds: Feeds, seed: int) -> dict[str, NDArray[Any]]:
        """The same with every node's results rounded at random to what the graph has there."""
        assert self._rounding is not None  # of a wide run only
        self._rounding.rng = np.random.default_rng(seed)
        try:
            return self(feeds)
        finally:
            self._rounding.rng = None


def _float_types(graph: onnx.GraphProto) -> dict[str, int]:
    """The element types of float tensors, as far as the graph declares them."""
    return {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.tensor_type.elem_type in _FLOATS
    } | {
        tensor.name: tensor.data_type
        for tensor in graph.initializer
        if tensor.data_type in _FLOATS
    }


def _no_implementation(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"onnx's reference evaluator, the float64 oracle, does not run the graph: {text[:200]}"


def _name_outputs(graph: onnx.GraphProto) -> None:
    """Name what is left out: the evaluator takes such an output for an input left out."""
    for index, node in enumerate(graph.node):
        for at, name in enumerate(node.output):
            if not name:
                node.output[at] = f"left out {index} {at}"
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _name_outputs(inner)


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` in which every narrower float is float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_model(wide)
    return wide


def _widen_model(model: onnx.ModelProto) -> None:
    _widen_graph(model.graph)
    for function in model.functions:
        _widen_nodes(function.node)


def _widen_graph(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type in _FLOATS:
            tensor.elem_type = _DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in _FLOATS:
                attribute.i = _DOUBLE
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            for tensor in attribute.tensors:
                _widen_tensor(tensor)
            if attribute.type == onnx.AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            for graph in attribute.graphs:
                _widen_graph(graph)
        if node.op_type == "Constant":
            _widen_numbers(node)
        if node.op_type == "ConstantOfShape" and not node.attribute:
            # Without a value it makes float32 zeros.
            zero = numpy_helper.from_array(np.zeros(1, np.float64))
            node.attribute.append(onnx.helper.make_attribute("value", zero))


def _widen_numbers(node: onnx.NodeProto) -> None:
    """A constant that is written as a number, or as a list of them, makes float32."""
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_floats"):
            value = np.asarray(onnx.helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
