"""A graph in float64 whose nodes round their results at random.

The same arithmetic as `causal_attn.export.arithmetic` has for modules, for onnx's reference
evaluator: each float result of a node is rounded to the dtype that the graph gives it, up with
the probability with which it lies towards the upper neighbour (Parker, "Monte Carlo arithmetic",
1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

__all__ = ["NodeRounding", "round_at_random"]

_FORMATS: dict[int, np.finfo[Any]] = {
    onnx.TensorProto.FLOAT16: np.finfo(np.float16),
    onnx.TensorProto.FLOAT: np.finfo(np.float32),
    onnx.TensorProto.DOUBLE: np.finfo(np.float64),
}

_SUMMING = {
    "Attention", "Conv", "Einsum", "Gemm", "GroupQueryAttention", "MatMul", "MatMulNBits",
    "ReduceMean", "ReduceSum",
}  # fmt: skip
"""Products and partial sums inside these are rounded too, and no result shows them."""


_FLOAT16_DATA, _INT8_DATA = 2, 4
"""Values of ``accuracy_level`` at which ``MatMulNBits`` may narrow its data; the latter to 8-bit
integers with a scale for each block."""


class NodeRounding:
    """Makes the nodes of an evaluator round, whenever it is given something to draw from.

    Args:
        evaluator: Of a graph that was widened to float64.
        formats: Element type, before it was widened, of the tensors whose type is declared.
        default: That of all others.
    """

    def __init__(
        self, evaluator: ReferenceEvaluator, formats: Mapping[str, int], default: int
    ) -> None:
        self.rng: np.random.Generator | None = None
        self._formats = formats
        self._default = default
        # Calls of one function may share its nodes.
        for node in {id(node): node for node in _nodes(evaluator)}.values():
            self._wrap(node)

    def _wrap(self, node: Any) -> None:
        run, op_type = node.run, node.onnx_node.op_type

        def rounding(*inputs: Any, **named: Any) -> Any:
            if self.rng is None:
                return run(*inputs, **named)
            if op_type == "MatMulNBits":
                inputs = (self._narrowed(node.onnx_node, inputs[0]), *inputs[1:])
            if op_type in _SUMMING:
                inputs = tuple(map(self._shaken, inputs))
            if op_type == "MatMulNBits" and self._limits("").dtype == np.float32:
                # Its sums are of term after term, see `causal_attn.verify.oracle.block_quantized`:
                # shaken terms are off by a tenth of what that makes of 576 of them.
                (product,) = run(*map(_narrow, inputs), **named)
                results = (product.astype(np.float64),)
            else:
                results = run(*inputs, **named)
            if op_type == "CumSum":
                # Every partial sum is rounded, and what comes after it is built on that.
                (sums,) = results
                errors = self._rounded(node.output[0], sums) - sums
                results = (sums + run(errors, *inputs[1:], **named)[0],)
            return tuple(
                self._rounded(name, result)
                for name, result in zip(node.output, results, strict=False)
            )

        node.run = rounding

    def _limits(self, name: str) -> np.finfo[Any]:
        return _FORMATS.get(self._formats.get(name, self._default), np.finfo(np.float32))

    def _rounded(self, name: str, result: Any) -> Any:
        if self.rng is None or not _is_wide(result):
            return result
        return round_at_random(result, self._limits(name), self.rng)

    def _narrowed(self, node: onnx.NodeProto, data: Any) -> Any:
        """`data` as a product with quantized weights may see it, by its ``accuracy_level``."""
        values = {attribute.name: attribute.i for attribute in node.attribute}
        level = values.get("accuracy_level", 0)
        if self.rng is None or not _is_wide(data):
            return data
        if level == _INT8_DATA:
            return _blocks_at_random(data, values["block_size"], self.rng)
        if level == _FLOAT16_DATA:
            return round_at_random(data, np.finfo(np.float16), self.rng)
        return data

    def _shaken(self, terms: Any) -> Any:
        if self.rng is None or not _is_wide(terms):
            return terms
        unit = float(self._limits("").eps) / 2
        shaken = terms * (1 + unit * self.rng.uniform(-1, 1, terms.shape))
        # Whole numbers are summed exactly: a count of visible keys that is compared with 1 does
        # not come out as 0.99999994 in any honest run.
        return np.where(terms == np.trunc(terms), terms, shaken)


def round_at_random(
    values: NDArray[np.float64], limits: np.finfo[Any], rng: np.random.Generator
) -> NDArray[np.float64]:
    """`values` rounded to those of a narrower dtype: exact ones stay, others go up or down.

    What lies beyond the largest number becomes that number; NaN and infinities stay.
    """
    digits = limits.nmant + 1
    exponents = np.frexp(values)[1] - digits
    lowest = int(np.frexp(float(limits.smallest_normal))[1]) - digits
    units = np.ldexp(1.0, np.maximum(exponents, lowest))
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.floor(values / units + rng.random(values.shape)) * units
    kept = np.clip(rounded, float(limits.min), float(limits.max))
    return np.where(np.isfinite(values), kept, values)


def _blocks_at_random(
    values: NDArray[np.float64], block_size: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """`values` as 8-bit integers, -127 to 127, with a scale for each block along the last axis."""
    count = values.shape[-1]
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -count % block_size)])
    blocks = padded.reshape(*values.shape[:-1], -1, block_size)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    scales = np.where(scales > 0, scales, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.floor(blocks / scales + rng.random(blocks.shape)) * scales
    kept = np.where(np.isfinite(blocks), rounded, blocks)
    return kept.reshape(padded.shape)[..., :count]


def _narrow(value: Any) -> Any:
    return value.astype(np.float32) if _is_wide(value) else value


def _is_wide(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _nodes(evaluator: ReferenceEvaluator) -> Iterator[Any]:
    """Every node, in functions and in the graphs inside nodes too."""
    for node in evaluator.rt_nodes_:
        yield node
        for value in vars(node).values():
            if isinstance(value, ReferenceEvaluator):
                yield from _nodes(value)
