"""Bounds of products, reductions, norms and attention.

A product of a row and a column is at most their lengths multiplied (Cauchy-Schwarz), and a mean
with weights that add up to one is no longer than the longest of what it is the mean of.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.bounds.arithmetic import summed
from causal_attn.verify.influence.bounds.extent import Extent, hull
from causal_attn.verify.influence.bounds.moving import reshaped, transposed
from causal_attn.verify.influence.bounds.step import Step, bound
from causal_attn.verify.influence.registry import MICROSOFT

__all__ = ["score_size"]


def _product(a: Extent, a_shape: tuple[int, ...], b: Extent, b_shape: tuple[int, ...]) -> Extent:
    """Of ``a @ b``; ranks of at least 2, batch axes broadcast."""
    if a.share is not None and a.share[0] == len(a_shape) - 1:
        total = a.share[1]
        size = total * b.size
        row = total * b.length(b_shape, [len(b_shape) - 1])
    else:
        longest = a.length(a_shape, [len(a_shape) - 1])
        column = b.length(b_shape, [len(b_shape) - 2])
        whole = b.length(b_shape, [len(b_shape) - 2, len(b_shape) - 1])
        size = _times(longest, column)
        row = min(_times(longest, whole), _times(size, math.sqrt(b_shape[-1])))
    rank = max(len(a_shape), len(b_shape))
    return Extent(-size, size, row, frozenset({rank - 1}))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _operand(step: Step, at: int) -> Extent:
    """A factor of a product: constants of a mask are values in it."""
    low, high = step.values(at)
    extent = step.extents[at]
    if low < extent.low or high > extent.high:
        return Extent(low, high)
    return extent


@bound("MatMul")
@bound("FusedMatMul", domain=MICROSOFT)
def _matmul(step: Step) -> list[Extent]:
    a, b = _operand(step, 0), _operand(step, 1)
    a_shape, b_shape = step.tensor(0).shape, step.tensor(1).shape
    if min(len(a_shape), len(b_shape)) < 2:
        count = a_shape[-1]
        size = _times(_times(a.size, b.size), count)
        return [Extent(-size, size)]
    if step.attr("transBatchA", 0) or step.attr("transBatchB", 0):
        return [Extent()]
    if step.attr("transA", 0):
        a, a_shape = _swapped(a, a_shape)
    if step.attr("transB", 0):
        b, b_shape = _swapped(b, b_shape)
    factor = abs(step.attr("alpha", 1.0))
    return [_product(a, a_shape, b, b_shape).scaled(factor)]


def _swapped(extent: Extent, shape: tuple[int, ...]) -> tuple[Extent, tuple[int, ...]]:
    rank = len(shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return transposed(extent, perm), tuple(shape[axis] for axis in perm)


@bound("Gemm")
def _gemm(step: Step) -> list[Extent]:
    a, b = _operand(step, 0), _operand(step, 1)
    a_shape, b_shape = step.tensor(0).shape, step.tensor(1).shape
    if step.attr("transA", 0):
        a, a_shape = _swapped(a, a_shape)
    if step.attr("transB", 0):
        b, b_shape = _swapped(b, b_shape)
    result = _product(a, a_shape, b, b_shape).scaled(abs(step.attr("alpha", 1.0)))
    if step.has(2):
        factor = abs(step.attr("beta", 1.0))
        bias = step.tensor(2)
        row = step.extents[2].length(bias.shape, [bias.rank - 1]) if bias.rank else math.inf
        size = result.size + factor * step.size(2)
        return [Extent(-size, size, result.norm + factor * row, result.axes)]
    return [result]


@bound("MatMulNBits", domain=MICROSOFT)
def _matmul_bits(step: Step) -> list[Extent]:
    # A weight is its integer less a zero point, times a scale.
    code = float(1 << step.attr("bits", 4))
    if step.has(3) and step.tensor(3).dtype != np.uint8:
        code += step.size(3)
    size = code * step.size(2)
    data = step.tensor(0)
    length = _times(step.length(0, [data.rank - 1]), size * math.sqrt(step.attr("K")))
    if step.has(5):
        length += step.size(5)
    return [Extent(-length, length)]


@bound("Einsum")
def _einsum(step: Step) -> list[Extent]:
    equation = step.attr("equation").replace(" ", "")
    if "..." in equation or "->" not in equation:
        return [Extent()]
    terms, _, target = equation.partition("->")
    sizes = {
        label: dim
        for at, term in enumerate(terms.split(","))
        for label, dim in zip(term, step.tensor(at).shape, strict=True)
    }
    size = float(math.prod(dim for label, dim in sizes.items() if label not in target))
    labels = terms.split(",")
    if len(labels) == 2 and (summed_over := (set(labels[0]) & set(labels[1])) - set(target)):
        lone = size / math.prod(sizes[label] for label in summed_over)
        lengths = [
            step.length(at, [label.index(c) for c in summed_over])
            for at, label in enumerate(labels)
        ]
        size = _times(_times(lengths[0], lengths[1]), lone)
    else:
        for at in range(len(labels)):
            size = _times(size, step.size(at))
    return [Extent(-size, size)]


@bound("ReduceMean", "ReduceMin")
def _same_interval(step: Step) -> list[Extent]:
    return [Extent(*step.values(0))]


@bound("ReduceMax")
def _largest(step: Step) -> list[Extent]:
    extent, tensor = step.extents[0], step.tensor(0)
    if tensor.plain or not step.output().plain:
        return [Extent(extent.low, extent.high)]
    axes = step.known(1)
    given = step.attr("axes") if axes is None else axes.reshape(-1)
    along = range(tensor.rank) if given is None else [int(axis) for axis in given]
    # A row's largest is no less than its data under its largest constant.
    low = np.nan_to_num(tensor.low.astype(np.float64), nan=-np.inf)
    best = low.max(axis=tuple(along), keepdims=True)
    return [Extent(extent.low + min(0.0, float(best.min())), step.values(0)[1])]


@bound("ReduceSum", "ReduceL1", "CumSum")
def _sum(step: Step) -> list[Extent]:
    tensor = step.tensor(0)
    count = max(1, tensor.size // max(1, step.output().size))
    if step.node.op == "CumSum":
        axis = step.known(1)
        count = max(tensor.shape) if axis is None else tensor.shape[int(axis.reshape(-1)[0])]
    low, high = step.values(0)
    return [Extent(min(low * count, low), max(high * count, high))]


@bound("ReduceSumSquare", "ReduceL2")
def _squares(step: Step) -> list[Extent]:
    tensor = step.tensor(0)
    count = max(1, tensor.size // max(1, step.output().size))
    size = step.size(0) * math.sqrt(count)
    return [Extent(0.0, size if step.node.op == "ReduceL2" else size * size)]


@bound("ReduceLogSumExp")
def _log_sum_exp(step: Step) -> list[Extent]:
    extent = step.extents[0]
    return [Extent(extent.low, extent.high + math.log(max(1, step.tensor(0).size)))]


@bound("Softmax")
@bound("BiasSoftmax", domain=MICROSOFT)
def _softmax(step: Step) -> list[Extent]:
    rank = step.output().rank
    axis = step.attr("axis", -1 if step.opset >= 13 or step.node.domain else 1) % rank
    if step.opset < 13 and axis != rank - 1:
        return [Extent(0.0, 1.0)]
    return [Extent(0.0, 1.0, 1.0, frozenset({axis}), share=(axis, 1.0))]


def _rows(step: Step, axes: Collection[int], gain: int, shift: int | None) -> Extent:
    """Of normalized rows times a gain and shifted: as long as the root of their number."""
    shape = step.output().shape
    length = math.sqrt(math.prod(shape[axis] for axis in axes))
    size, norm = length, length
    if step.has(gain):
        size, norm = size * step.size(gain), norm * step.size(gain)
    if shift is not None and step.has(shift):
        norm += step.length(shift, range(step.tensor(shift).rank))
        size += step.size(shift)
    return Extent(-size, size, norm, frozenset(axes))


@bound("LayerNormalization")
@bound("LayerNormalization", domain=MICROSOFT)
def _layer_norm(step: Step) -> list[Extent]:
    rank = step.tensor(0).rank
    axis = step.attr("axis", -1) % rank
    return [_rows(step, range(axis, rank), 1, 2)]


@bound("RMSNormalization", "SimplifiedLayerNormalization")
@bound("SimplifiedLayerNormalization", domain=MICROSOFT)
def _rms_norm(step: Step) -> list[Extent]:
    rank = step.tensor(0).rank
    axis = step.attr("axis", -1) % rank
    return [_rows(step, range(axis, rank), 1, None)]


@bound("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_norm(step: Step) -> list[Extent]:
    simple = step.node.op == "SkipSimplifiedLayerNormalization"
    rows = _rows(step, [step.output().rank - 1], 2, None if simple else 3)
    parts = [0, 1, *([3 if simple else 4] if step.has(3 if simple else 4) else [])]
    low = sum(step.extents[at].low for at in parts)
    high = sum(step.extents[at].high for at in parts)
    return [rows, Extent(), Extent(), Extent(low, high)]


@bound("LpNormalization")
def _lp_norm(step: Step) -> list[Extent]:
    axis = step.attr("axis", -1) % step.output().rank
    return [Extent(-1.0, 1.0, 1.0, frozenset({axis}))]


@bound("Conv")
def _conv(step: Step) -> list[Extent]:
    weight = step.tensor(1)
    count = math.prod(weight.shape[1:])
    length = step.length(1, range(1, weight.rank))
    size = _times(_times(step.size(0), math.sqrt(count)), length)
    if step.has(2):
        size += step.size(2)
    return [Extent(-size, size)]


@bound("RotaryEmbedding")
@bound("RotaryEmbedding", domain=MICROSOFT)
def _rotary(step: Step) -> list[Extent]:
    """Pairs of features are turned; cosine and sine together are as long as their size says."""
    first = 2 if step.node.domain else 1
    turn = max(1.0, step.size(first) + step.size(first + 1))
    return [step.extents[0].scaled(turn)]


def _heads(step: Step, at: int, heads: int) -> tuple[Extent, tuple[int, ...]]:
    """Queries, keys or values as ``[batch, heads, tokens, features]``."""
    tensor, extent = step.tensor(at), step.extents[at]
    if tensor.rank == 4:
        return extent, tensor.shape
    batch, tokens, width = tensor.shape
    split = (batch, tokens, heads, width // heads)
    extent = transposed(reshaped(extent, tensor.shape, split), (0, 2, 1, 3))
    return extent, (batch, heads, tokens, width // heads)


def _with_past(step: Step, past: int, fresh: Extent, shape: tuple[int, ...]) -> Extent:
    if not step.has(past) or not step.tensor(past).size:
        return fresh
    held = step.extents[past]
    length = max(held.length(step.tensor(past).shape, [3]), fresh.length(shape, [3]))
    return replace(hull((held, fresh)), norm=length, axes=frozenset({3}))


def score_size(step: Step) -> float:
    """Largest magnitude of the scores of an attention operator, before masks."""
    query_heads = step.attr("q_num_heads") or step.attr("num_heads") or 0
    key_heads = step.attr("kv_num_heads") or query_heads
    if _adds_bias(step):
        return math.inf
    query, query_shape = _heads(step, 0, query_heads)
    key, key_shape = _heads(step, 1, key_heads)
    past = {"Attention": 4, "GroupQueryAttention": 3, "MultiHeadAttention": 6}[step.node.op]
    key = _with_past(step, past, key, key_shape)
    if step.attr("do_rotary", 0):
        query, key = query.scaled(2.0), key.scaled(2.0)
    scale = step.attr("scale") or query_shape[-1] ** -0.5
    size = _times(query.length(query_shape, [3]), key.length(key_shape, [3])) * abs(scale)
    cap = float(step.attr("softcap") or 0.0)
    return min(float(size), abs(cap) or math.inf)


def _adds_bias(step: Step) -> bool:
    return step.node.op == "MultiHeadAttention" and step.has(3)


@bound("Attention")
@bound("GroupQueryAttention", "MultiHeadAttention", domain=MICROSOFT)
def _attention(step: Step) -> list[Extent]:
    """A mean of values with weights that add up to one; caches with the new rows behind."""
    heads = step.attr("q_num_heads") or step.attr("num_heads") or 0
    key_heads = step.attr("kv_num_heads") or heads
    first = {"Attention": 4, "GroupQueryAttention": 3, "MultiHeadAttention": 6}[step.node.op]
    if _adds_bias(step):
        return [Extent()] * 4
    caches, shapes = [], []
    for at, past in ((1, first), (2, first + 1)):
        fresh, shape = _heads(step, at, key_heads)
        if at == 1 and step.attr("do_rotary", 0):
            # Of a pair that is turned, each is at most the length of both.
            fresh = fresh.scaled(2.0)
        caches.append(_with_past(step, past, fresh, shape))
        shapes.append(shape)
    value = caches[1]
    length = value.length(shapes[1], [3])
    result = step.output()
    if result.rank == 4:
        mixed = Extent(-value.size, value.size, length, frozenset({3}))
    else:
        count = result.shape[-1] // max(shapes[1][-1], 1)
        mixed = Extent(-value.size, value.size, length * math.sqrt(count), frozenset({2}))
    return [mixed, *caches, Extent()]


@bound("BiasAdd", domain=MICROSOFT)
def _bias_add(step: Step) -> list[Extent]:
    return [summed(step, [1.0] * len(step.inputs))]
