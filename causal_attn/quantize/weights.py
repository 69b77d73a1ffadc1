"""A graph with its weight products in a few bits: ``MatMul`` to ``MatMulNBits``.

The integers and scales are those of ONNX Runtime's own quantizer. It looks at products with a
stored matrix alone, so what stands between a product and its matrix is taken away first: a
matrix that is turned around (that of a tied embedding), and ``Gemm``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from causal_attn.errors import UsageError
from causal_attn.verify.oracle.block_quantized import dequantized

__all__ = ["BITS", "BLOCK_SIZES", "Quantized", "quantize_weights"]

BITS = (4, 8)
BLOCK_SIZES = (16, 32, 64, 128, 256)

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What became of a graph.

    Attributes:
        model: The graph with its weights in memory.
        products: Products whose weights are in `bits` bits now.
        largest_step: The largest distance between a weight and what stands for it, in steps of
            its block; at most half a step, and one where the largest weight of a block is rounded
            to the end of the range.
    """

    model: onnx.ModelProto
    products: int
    largest_step: float


def quantize_weights(model: onnx.ModelProto, bits: int, block_size: int) -> Quantized:
    """Quantize `model`, which is changed: symmetrically, in blocks along what is summed over.

    Args:
        model: A graph with its weights in memory.
        bits: 4 or 8.
        block_size: Weights that share a scale.

    Raises:
        UsageError: It has no product with a stored matrix of float32 or float16.
    """
    _plain_products(model.graph)
    sources = _matrices(model.graph)
    with _quiet():
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        # The library's own annotations say that its wrapper of a model is a model.
        quantizer: Any = MatMulNBitsQuantizer(
            model, bits=bits, block_size=block_size, is_symmetric=True
        )
        quantizer.process()
    result: onnx.ModelProto = quantizer.model.model
    _once(result.graph)
    stored = {tensor.name: tensor for tensor in result.graph.initializer}
    largest, products = 0.0, 0
    for node in result.graph.node:
        if node.op_type == "MatMulNBits" and node.output[0] in sources:
            source = sources[node.output[0]]
            largest = max(largest, _steps(node, stored, source, bits, block_size))
            products += 1
    if not products:
        raise UsageError(
            "`package` must have products with stored matrices of float32 or float16, got none: "
            "there is nothing to quantize."
        )
    return Quantized(model=result, products=products, largest_step=largest)


def _plain_products(graph: onnx.GraphProto) -> None:
    """Write products with a stored matrix as ``MatMul`` of that matrix, where they are another."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    turned = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in stored
    }
    made: set[str] = set()

    def matrix(name: str, turn: bool) -> str | None:
        """The name of a stored matrix that is `name`, turned around if asked for."""
        source = str(turned.get(name, name))
        turn ^= name in turned
        tensor = stored.get(source)
        if tensor is None or len(tensor.dims) != 2 or tensor.data_type not in _FLOATS:
            return None
        if not turn:
            return source
        around = f"{source}.turned"
        if around not in made:
            made.add(around)
            array = np.ascontiguousarray(numpy_helper.to_array(tensor).T)
            graph.initializer.append(numpy_helper.from_array(array, around))
        return around

    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        values = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "MatMul" and node.input[1] in turned:
            node.input[1] = matrix(node.input[1], False) or node.input[1]
        elif node.op_type == "Gemm" and _is_linear(values):
            name = matrix(node.input[1], "transB" in values and bool(values["transB"].i))
            if name is not None:
                nodes += _as_product(node, name)
                continue
        nodes.append(node)
    read = {name for node in nodes for name in node.input} | {o.name for o in graph.output}
    kept = [n for n in nodes if n.op_type != "Transpose" or set(n.output) & read]
    del graph.node[:]
    graph.node.extend(kept)


def _is_linear(values: dict[str, onnx.AttributeProto]) -> bool:
    """Whether a ``Gemm`` is ``a @ b + c``, or that with `b` turned around."""
    factors = [values[name].f for name in ("alpha", "beta") if name in values]
    return all(factor == 1 for factor in factors) and not (
        "transA" in values and values["transA"].i
    )


def _as_product(node: onnx.NodeProto, matrix: str) -> list[onnx.NodeProto]:
    """A linear ``Gemm`` as a product with `matrix` and a sum."""
    shifted = len(node.input) > 2 and node.input[2]
    product = f"{node.output[0]}.product" if shifted else node.output[0]
    name = node.name or node.output[0]
    made = [onnx.helper.make_node("MatMul", [node.input[0], matrix], [product], name=name)]
    if shifted:
        sum_of = [product, node.input[2]]
        made.append(onnx.helper.make_node("Add", sum_of, [node.output[0]], name=f"{name}.bias"))
    return made


def _matrices(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The stored matrix of each product that has one, by the name of its result."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return {
        node.output[0]: stored[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul"
        and node.input[1] in stored
        and len(stored[node.input[1]].dims) == 2
        and stored[node.input[1]].data_type in _FLOATS
    }


def _once(graph: onnx.GraphProto) -> None:
    """Keep each stored tensor once: the quantizer adds that of two products twice."""
    first = {tensor.name: tensor for tensor in reversed(graph.initializer)}
    if len(first) < len(graph.initializer):
        kept = list(first.values())
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _steps(
    node: onnx.NodeProto,
    stored: dict[str, onnx.TensorProto],
    source: onnx.TensorProto,
    bits: int,
    block_size: int,
) -> float:
    """How far the weights of `node` are from those of `source`, at most, in steps."""
    weights = numpy_helper.to_array(source).T.astype(np.float64)
    rows, features = weights.shape
    packed = numpy_helper.to_array(stored[node.input[1]]).reshape(rows, -1)
    scales = numpy_helper.to_array(stored[node.input[2]]).reshape(rows, -1).astype(np.float64)
    worst = 0.0
    step = max(1, (1 << 22) // features)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        found = dequantized(
            packed[part], scales[part], bits=bits, block_size=block_size, features=features
        )
        units = np.abs(scales[part])[:, np.arange(features) // block_size]
        # Of a block of zeros the scale is zero, and so is the distance.
        apart = np.abs(found - weights[part]) / np.where(units > 0, units, 1.0)
        worst = max(worst, float(apart.max(initial=0.0)))
    return worst


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer sets up the logging of the whole process when it is imported; take it back."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    disabled = root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
