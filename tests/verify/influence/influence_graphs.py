"""Graphs made by hand for the tests of the influence proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["Builder", "Dims", "allowed", "decoder", "single"]

Dims = Sequence[int | str]


class Builder:
    """Adds nodes one after the other and names what they write."""

    def __init__(self, opset: int = 18, weights: str = "") -> None:
        self.opset = opset
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(7)

    def input(self, name: str, dims: Dims, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(dims)))
        return name

    def const(self, value: Any, dtype: Any = None) -> str:
        name = f"const_{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        if self.weights:
            # All weights share one file: the proof reads no more than a sample of it.
            name = f"const_{len(self.stored)}"
            tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=self.weights)
            self.stored.append(tensor)
            return name
        return self.const(self.random.normal(size=shape) + 3.0, np.float32)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}_{at}" for at in range(1, outputs))]
        node = helper.make_node(op, list(inputs), names, name=name, **attributes)
        self.nodes.append(node)
        return name

    def model(
        self, outputs: dict[str, str], dims: Dims | None = ("b", "tokens", "c")
    ) -> ModelProto:
        """A model whose outputs are renamed from what the nodes wrote."""
        for name, source in outputs.items():
            self.nodes.append(helper.make_node("Identity", [source], [name], name=f"out_{name}"))
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None if dims is None else dims)
            for name in outputs
        ]
        graph = helper.make_graph(self.nodes, "g", self.inputs, infos, self.stored)
        domains = {node.domain for node in self.nodes if node.domain}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets)


def allowed(b: Builder, source: str, mutant: str = "") -> str:
    """Which key a query sees: ``bool [tokens, tokens]``, made in the graph."""
    length = b("Gather", b("Shape", source), b.const(1, np.int64), axis=0)
    places = b("Range", b.const(0, np.int64), length, b.const(1, np.int64))
    rows = b("Unsqueeze", places, b.const([1], np.int64))
    columns = b("Unsqueeze", places, b.const([0], np.int64))
    if mutant == "shifted":
        rows = b("Add", rows, b.const(1, np.int64))
    if mutant == "transposed":
        rows, columns = columns, rows
    if mutant == "tiled":
        rows, columns = (b("Mod", axis, b.const(4, np.int64)) for axis in (rows, columns))
    return b("LessOrEqual", columns, rows)


def decoder(
    *,
    layers: int = 2,
    heads: int = 4,
    width: int = 16,
    mask: str = "",
    mask_layers: Sequence[int] | None = None,
    fill: float = -np.inf,
    softmax_axis: int = -1,
    norm_axis: int = -1,
    swap: bool = False,
    extra: Callable[[Builder, str], str] | None = None,
    weights: str = "",
) -> ModelProto:
    """A pre-norm decoder of about 30 nodes a layer, ``input_ids -> logits``.

    Args:
        layers: Blocks.
        heads: Heads of each.
        width: Width of the residual stream.
        mask: Mutant of the mask: ``shifted``, ``transposed``, ``tiled``, ``one head``,
            ``frozen``, ``frozen at one``.
        mask_layers: Layers that mask; all unless given.
        fill: What masked scores get added.
        softmax_axis: Of the scores.
        norm_axis: First normalized axis of the residual stream.
        swap: Keys and values change places.
        weights: File that stores the weights; in the model unless given.
        extra: A mutant of the residual stream, after the first block.
    """
    b = Builder(weights=weights)
    ids = b.input("input_ids", ["batch", "tokens"], TensorProto.INT64)
    size = width // heads
    x = b("Gather", b.weight(50, width), ids)
    if mask.startswith("frozen"):
        length = 1 if mask == "frozen at one" else 6
        bias = b.const(np.where(np.tri(length, dtype=bool), 0.0, fill), np.float32)
    else:
        seen = allowed(b, ids, mask)
        if mask == "one head":
            open_head = np.zeros((1, heads, 1, 1), bool)
            open_head[0, 2] = True
            seen = b("Or", seen, b.const(open_head))
        zero, filler = b.const(0.0, np.float32), b.const(fill, np.float32)
        bias = b("Where", seen, zero, filler)
    split = b.const([0, 0, heads, size], np.int64)
    whole = b.const([0, 0, width], np.int64)
    for layer in range(layers):
        normed = _norm(b, x, width, norm_axis)
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            projected = b("Add", b("MatMul", normed, b.weight(width, width)), b.weight(width))
            parts.append(b("Transpose", b("Reshape", projected, split), perm=perm))
        query, key, value = parts
        if swap:
            swapped = [b("Transpose", part, perm=[0, 1, 3, 2]) for part in (value, key)]
            key, value = swapped
        scores = b("Mul", b("MatMul", query, key), b.const(size**-0.5, np.float32))
        if mask_layers is None or layer in mask_layers:
            scores = b("Add", scores, bias)
        weights = b("Softmax", scores, axis=softmax_axis)
        mixed = b("Transpose", b("MatMul", weights, value), perm=[0, 2, 1, 3])
        attended = b("MatMul", b("Reshape", mixed, whole), b.weight(width, width))
        x = b("Add", x, attended)
        hidden = b("MatMul", _norm(b, x, width, norm_axis), b.weight(width, 4 * width))
        half = b("Mul", hidden, b.const(0.5, np.float32))
        erf = b("Erf", b("Div", hidden, b.const(2**0.5, np.float32)))
        gelu = b("Mul", half, b("Add", erf, b.const(1.0, np.float32)))
        x = b("Add", x, b("MatMul", gelu, b.weight(4 * width, width)))
        if extra is not None and layer == 0:
            x = extra(b, x)
    return b.model({"logits": b("MatMul", x, b.weight(width, 50))})


def _norm(b: Builder, x: str, width: int, axis: int) -> str:
    return b("LayerNormalization", x, b.weight(width), b.weight(width), axis=axis)


def single(
    op: str,
    *dims: Dims,
    opset: int = 18,
    consts: Sequence[Any] = (),
    dtype: int = TensorProto.FLOAT,
    outputs: int = 1,
    output: int = 0,
    **attributes: Any,
) -> ModelProto:
    """One node; inputs ``x0``, ``x1``, … of the given dims, then constants; output ``y``."""
    b = Builder(opset)
    names = [b.input(f"x{at}", shape, dtype) for at, shape in enumerate(dims)]
    names += [b.const(value) if value is not None else "" for value in consts]
    made = b(op, *names, outputs=outputs, **attributes)
    return b.model({"y": made if output == 0 else f"{made}_{output}"}, None)
