"""Sizes of named dims that the nodes of a graph fix.

An exporter may name an axis that has one size: onnxruntime-genai calls the features of a cache
``kv_cache_dim``. Which size that is follows from the attention node that reads the cache: the
width of its packed heads over their number.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

__all__ = ["fixed_sizes"]

_CACHES = {
    "GroupQueryAttention": (3, 4),
    "MultiHeadAttention": (6, 7),
    "DecoderMaskedMultiHeadAttention": (5, 6),
}
"""Where the past key and the past value go in, by operator of ``com.microsoft``."""

_SAME_WIDTH = {
    "Add", "Sub", "Mul", "Cast", "Identity", "QuickGelu", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization",
    "RotaryEmbedding",
}  # fmt: skip


def fixed_sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Named dims of cache inputs to the size that attention nodes give them."""
    writers = {name: node for node in graph.node for name in node.output if name}
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    declared = {value.name: value for value in (*graph.value_info, *graph.input)}
    inputs = {value.name: value for value in graph.input}
    sizes: dict[str, int] = {}
    for node in graph.node:
        places = _CACHES.get(node.op_type, ())
        caches = [node.input[at] for at in places if at < len(node.input)]
        width = _head_width(node, _Widths(writers, weights, declared)) if caches else None
        for name in caches:
            if width is None or name not in inputs:
                continue
            last = inputs[name].type.tensor_type.shape.dim[-1:]
            for dim in last:
                if dim.dim_param:
                    sizes[dim.dim_param] = width
    return sizes


def _head_width(node: onnx.NodeProto, widths: _Widths) -> int | None:
    attributes: dict[str, int] = {item.name: item.i for item in node.attribute}
    heads = attributes.get("num_heads", 0)
    kv_heads = attributes.get("kv_num_heads", heads)
    separate = len(node.input) > 1 and node.input[1] != ""
    width = widths.of(node.input[1 if separate else 0])
    parts = kv_heads if separate else heads + 2 * kv_heads
    if width is None or parts < 1 or width % parts:
        return None
    return width // parts


class _Widths:
    """Last dims of tensors, by what the graph declares or by the weights they come from."""

    def __init__(
        self,
        writers: Mapping[str, onnx.NodeProto],
        weights: Mapping[str, tuple[int, ...]],
        declared: Mapping[str, onnx.ValueInfoProto],
    ) -> None:
        self.writers, self.weights, self.declared = writers, weights, declared

    def of(self, name: str) -> int | None:
        # A graph that runs in a circle must not keep this from ending.
        for _ in range(len(self.writers) + 1):
            if name in self.weights:
                return self.weights[name][-1] if self.weights[name] else None
            if name in self.declared:
                dims = self.declared[name].type.tensor_type.shape.dim
                if dims and dims[-1].HasField("dim_value"):
                    return int(dims[-1].dim_value)
            node = self.writers.get(name)
            if node is None:
                return None
            attributes = {item.name: item.i for item in node.attribute}
            if node.op_type == "MatMulNBits":
                return int(attributes["N"])
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in self.weights:
                turned = node.op_type == "Gemm" and attributes.get("transB", 0)
                return self.weights[node.input[1]][0 if turned else -1]
            if node.op_type not in _SAME_WIDTH:
                return None
            name = node.input[0]
        return None
