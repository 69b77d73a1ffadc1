"""What is known of a tensor as a whole: where it comes from, and whether it is sure to be finite.

The planes of a tensor drop what cannot matter: a known zero times data is zero. Two things bring
the data back. Zero times NaN is NaN, which ``IsNaN`` sees; and such a zero has the sign of the
data, which a division by it sees. The rules that see either ask here.

Not finite means outside of an operator's domain, as the logarithm of 0 and the quotient by 0 are.
Overflow and underflow are not followed: the claim is about data whose results are numbers of their
dtype. Nor is a NaN that stays NaN: the rows that hide a value hide finite values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from causal_attn.verify.influence.graph import Graph, Node
from causal_attn.verify.influence.tensor import Tensor, Value, Words, join_words

__all__ = ["ANY", "NOT_NEGATIVE", "POSITIVE", "Origin", "derive", "joined", "of_value", "partial"]

ANY, NOT_NEGATIVE, POSITIVE = range(3)


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about a whole tensor.

    Attributes:
        reach: Every position that any value is computed from, dropped or not.
        wild: It may hold NaN or infinity while the inputs of the graph are finite.
        sign: `POSITIVE`, `NOT_NEGATIVE`, or `ANY` where that is not known.
    """

    reach: Words
    wild: bool = False
    sign: int = ANY


_LIMITED = {"Acos", "Acosh", "Asin", "Atanh", "Log", "ReduceLogSum"}
_QUOTIENTS = {"Div", "Mod", "Pow", "Reciprocal", "Sqrt"}
_POSITIVE = {"Cosh", "Exp", "Sigmoid", "Softplus"}
_NOT_NEGATIVE = {"Abs", "Hardmax", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Softmax"}
_LOWEST_OF_ALL = {
    "AveragePool", "Cast", "Concat", "CumSum", "Expand", "Flatten", "Gather", "GlobalAveragePool",
    "Identity", "MatMul", "Mean", "Min", "Mul", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
}  # fmt: skip
_KEPT = {
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Max", "Min", "Reshape", "Slice", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""Integers come out as they went in; arithmetic may overflow to the other sign."""
_DATA_FIRST = {
    "CumSum", "Expand", "Gather", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze",
}  # fmt: skip


def of_value(value: Value) -> Origin:
    """Origin of a value that no node wrote."""
    return Origin(join_words(value), False, _sign(value))


def joined(origins: Sequence[Origin], words: int) -> Origin:
    """Origin of what is computed from all of them in an unknown way."""
    reach = [0] * words
    for origin in origins:
        reach = [a | b for a, b in zip(reach, origin.reach or (0,) * words, strict=True)]
    return Origin(tuple(reach), any(origin.wild for origin in origins))


def partial(graph: Graph) -> bool:
    """A node in the graph, or in a body in it, may leave the domain of its operator."""
    return any(
        node.op in _LIMITED
        or node.op in _QUOTIENTS
        or any(isinstance(item, Graph) and partial(item) for item in node.attributes.values())
        for node in graph.nodes
    )


def derive(
    node: Node,
    inputs: Sequence[Value | None],
    origins: Sequence[Origin],
    output: Value,
    words: int,
) -> Origin:
    """Origin of an output of `node`.

    Args:
        node: The node.
        inputs: Its inputs.
        origins: Theirs, in the same order; of no meaning where an input is left out.
        output: What the node wrote.
        words: Words of a bit set.
    """
    if node.op in ("Shape", "Size") and not node.domain:
        return Origin((0,) * words)
    total = joined([item for item, given in zip(origins, inputs, strict=True) if given], words)
    bits = join_words(output) or (0,) * words
    reach = tuple(a | b for a, b in zip(total.reach, bits, strict=True))
    if isinstance(output, Tensor) and output.dtype.kind in "iub":
        return Origin(reach, False, _whole_sign(node, inputs, origins, output))
    if node.domain:
        return Origin(reach, total.wild)
    wild = total.wild or (any(reach) and _leaves_domain(node, inputs, origins))
    sign = max(_sign(output), _sign_of(node, inputs, origins))
    return Origin(reach, wild, sign)


def _leaves_domain(node: Node, inputs: Sequence[Value | None], origins: Sequence[Origin]) -> bool:
    if node.op == "Log":
        return origins[0].sign != POSITIVE
    if node.op == "Sqrt":
        return origins[0].sign == ANY
    if node.op == "Pow":
        exponent = _whole(inputs[1])
        if exponent is not None and (exponent >= 0).all():
            whole = bool((exponent == np.rint(exponent)).all())
            return not whole and origins[0].sign == ANY
        return origins[0].sign != POSITIVE
    if node.op in ("Div", "Mod", "Reciprocal"):
        at = 0 if node.op == "Reciprocal" else 1
        divisor = inputs[at]
        zero = isinstance(divisor, Tensor) and bool(divisor.zero.any())
        return zero or (any(origins[at].reach) and origins[at].sign != POSITIVE)
    return node.op in _LIMITED


def _sign_of(node: Node, inputs: Sequence[Value | None], origins: Sequence[Origin]) -> int:
    op = node.op
    signs = [origin.sign for origin in origins]
    if op in _POSITIVE:
        return POSITIVE
    if op in _NOT_NEGATIVE:
        return NOT_NEGATIVE
    if op == "Mul" and node.inputs[0] == node.inputs[1]:
        return max(NOT_NEGATIVE, signs[0])
    if op == "Pow":
        exponent = _whole(inputs[1])
        even = exponent is not None and bool((exponent % 2 == 0).all())
        return max(signs[0], NOT_NEGATIVE if even else ANY)
    if op in ("Sqrt", "Reciprocal"):
        return max(signs[0], NOT_NEGATIVE) if op == "Sqrt" else signs[0]
    if op in ("Add", "Sum"):
        return max(signs) if min(signs) >= NOT_NEGATIVE else ANY
    if op == "Div":
        return min(signs) if signs[1] == POSITIVE else ANY
    if op == "Max":
        return max(signs)
    if op == "Where":
        return min(signs[1:])
    if op == "Clip":
        return max(signs[0], signs[1]) if len(signs) > 1 and inputs[1] is not None else ANY
    if op in _DATA_FIRST:
        return signs[0]
    # A product of many positive numbers, and the zeros of a mask among them, is not negative.
    return min(signs) if op in _LOWEST_OF_ALL and signs else ANY


def _whole_sign(
    node: Node, inputs: Sequence[Value | None], origins: Sequence[Origin], output: Tensor
) -> int:
    if output.dtype.kind in "ub":
        return NOT_NEGATIVE
    from_bool = (
        node.op == "Cast" and isinstance(source := inputs[0], Tensor) and source.dtype == np.bool_
    )
    if from_bool or (node.op in _KEPT and not node.domain):
        return max(_sign(output), _sign_of(node, inputs, origins))
    return _sign(output)


def _whole(value: Value | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    if not isinstance(value, Tensor) or not value.known.all():
        return None
    return value.low.astype(np.float64)


def _sign(value: Value) -> int:
    if isinstance(value, Tensor) and (value.low.flat[:64] < 0).any():
        # Most weights, which are not copied to find out.
        return ANY
    numbers = _whole(value) if isinstance(value, Tensor) else None
    if numbers is None or not numbers.size or not (numbers >= 0).all():
        return ANY
    return POSITIVE if (numbers > 0).all() else NOT_NEGATIVE
