"""Matrix products: a row with a known zero drops what it would have been multiplied with."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.combine import add, cast, opaque, subtract
from causal_attn.verify.influence.rules.movement import drop_axes, insert_axes, reshape, transpose
from causal_attn.verify.influence.rules.reductions import join_axes
from causal_attn.verify.influence.tensor import Array, Tensor, make, reduce_bits, unknown

__all__ = ["contract", "matmul"]

_LARGEST = 1 << 22
"""Elements of a product that are looked at in one go."""


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product with numpy's rules for batch axes and vectors."""
    if a.rank == 0 or b.rank == 0:
        raise DataDependent("it multiplies a scalar")
    first, last = a.rank == 1, b.rank == 1
    a = insert_axes(a, [0]) if first else a
    b = insert_axes(b, [1]) if last else b
    rank = max(a.rank, b.rank)
    a = reshape(a, (1,) * (rank - a.rank) + a.shape)
    b = reshape(b, (1,) * (rank - b.rank) + b.shape)
    if a.shape[-1] != b.shape[-2]:
        raise DataDependent(f"it multiplies shapes {list(a.shape)} and {list(b.shape)}")
    # Axes: batch..., row, inner, column.
    left = insert_axes(a, [rank])
    right = insert_axes(b, [rank - 2])
    product = contract([left, right], [rank - 1])
    result = drop_axes(product, [rank - 1])
    if last:
        result = drop_axes(result, [rank - 1])
    return drop_axes(result, [rank - 2 if not last else result.rank - 1]) if first else result


def contract(tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
    """Sum over `axes`, kept with size 1, of the product of tensors of one rank.

    Known zeros count where they change anything: not in a weight whose partner is reached by the
    same positions all along `axes`.
    """
    shape = list(np.broadcast_shapes(*[tensor.shape for tensor in tensors]))
    if any(shape[axis] == 0 for axis in axes):
        tensors = [unknown(t.shape, t.dtype, [np.zeros_like(p) for p in t.bits]) for t in tensors]
    for axis in axes:
        shape[axis] = 1
    zeros = [tensor.nought for tensor in tensors]
    if not any(_matters(tensors, zeros, index, axes) for index in range(len(tensors))):
        bits = reduce_bits(tensors[0], axes)
        for tensor in tensors[1:]:
            bits = [x | y for x, y in zip(bits, reduce_bits(tensor, axes), strict=True)]
        return unknown(shape, tensors[0].dtype, bits)
    if len(axes) == 1 and math.prod(np.broadcast_shapes(*_sizes(tensors, zeros))) > _LARGEST:
        return _contract_slowly(tensors, zeros, axes[0], shape)
    live = ~np.logical_or.reduce(np.broadcast_arrays(*zeros))
    voids = [tensor.void for tensor in tensors if tensor.void is not None]
    words = len(tensors[0].bits)
    joined = []
    for word in range(words):
        plane: Array = np.bitwise_or.reduce(
            np.broadcast_arrays(*[_counting(tensor, word, live) for tensor in tensors])
        )
        joined.append(np.bitwise_or.reduce(plane, axis=tuple(axes), keepdims=True))
    shown = np.logical_or.reduce(np.broadcast_arrays(live, *voids))
    known = ~shown.any(axis=tuple(axes), keepdims=True)
    return make(shape, tensors[0].dtype, joined, known, np.zeros((), tensors[0].dtype))


def _counting(tensor: Tensor, word: int, live: Array) -> Array:
    """Bits of a factor where the product shows them: what may be NaN shows under a zero too."""
    shown = live if tensor.void is None else live | tensor.void
    return np.where(shown, tensor.bits[word], np.uint64(0))


def _sizes(tensors: Sequence[Tensor], zeros: Sequence[Array]) -> list[tuple[int, ...]]:
    return [plane.shape for tensor in tensors for plane in tensor.bits] + [z.shape for z in zeros]


def _matters(
    tensors: Sequence[Tensor], zeros: Sequence[Array], index: int, axes: Sequence[int]
) -> bool:
    if not zeros[index].any():
        return False
    if zeros[index].all():
        return True
    others = [*tensors[:index], *tensors[index + 1 :]]
    return any(
        plane.shape[axis] > 1 for other in others for plane in (*other.bits, other.zero)
        for axis in axes
    ) or any(plane.any() for plane in tensors[index].bits) or not all(
        zeros[index].shape[axis] > 1 for axis in axes
    )  # fmt: skip


def _contract_slowly(
    tensors: Sequence[Tensor], zeros: Sequence[Array], axis: int, shape: list[int]
) -> Tensor:
    def at(plane: Array, place: int) -> Array:
        if plane.shape[axis] == 1:
            return plane
        return plane[(slice(None),) * axis + (slice(place, place + 1),)]

    count = max(plane_shape[axis] for plane_shape in _sizes(tensors, zeros))
    words = len(tensors[0].bits)
    bits: list[Array] = [np.zeros((1,) * len(shape), np.uint64)] * words
    known: Array = np.ones((1,) * len(shape), bool)
    for place in range(count):
        live = ~np.logical_or.reduce(np.broadcast_arrays(*[at(zero, place) for zero in zeros]))
        known = known & ~live
        for tensor in tensors:
            shown = live
            if tensor.void is not None:
                shown = live | at(tensor.void, place)
                known = known & ~at(tensor.void, place)
            for word in range(words):
                plane = np.where(shown, at(tensor.bits[word], place), np.uint64(0))
                bits[word] = bits[word] | plane
    return make(shape, tensors[0].dtype, bits, known, np.zeros((), tensors[0].dtype))


@rule("MatMul", fold=True)
def _matmul(call: Call) -> list[Tensor]:
    return [matmul(call.tensor(0), call.tensor(1))]


@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(call: Call) -> list[Tensor]:
    a, b = call.tensor(0), call.tensor(1)
    if call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        raise DataDependent("it transposes batch axes")
    a = _swap(a) if call.attr("transA", 0) else a
    b = _swap(b) if call.attr("transB", 0) else b
    return [matmul(a, b)]


def _swap(tensor: Tensor) -> Tensor:
    return transpose(tensor, (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2))


@rule("Gemm", fold=True)
@rule("FusedGemm", domain=MICROSOFT)
def _gemm(call: Call) -> list[Tensor]:
    a, b = call.tensor(0), call.tensor(1)
    a = _swap(a) if call.attr("transA", 0) else a
    b = _swap(b) if call.attr("transB", 0) else b
    result = matmul(a, b)
    bias = call.optional(2)
    if bias is not None and call.attr("beta", 1.0) != 0:
        result = add(result, bias)
    if call.node.op == "FusedGemm":
        result = opaque([result])
    return [result]


@rule("Einsum", fold=True)
def _einsum(call: Call) -> list[Tensor]:
    tensors = [call.tensor(index) for index in range(len(call.inputs))]
    equation = call.attr("equation").replace(" ", "")
    terms, _, target = equation.partition("->")
    labels = terms.split(",")
    spare = iter(sorted(set(string.ascii_letters) - set(equation)))
    free = max(t.rank - len(x.replace("...", "")) for t, x in zip(tensors, labels, strict=True))
    ellipsis = "".join(next(spare) for _ in range(free)) if "..." in equation else ""
    full = []
    for tensor, label in zip(tensors, labels, strict=True):
        count = tensor.rank - len(label.replace("...", ""))
        full.append(label.replace("...", ellipsis[len(ellipsis) - count :]))
    if "->" in equation:
        target = target.replace("...", ellipsis)
    else:
        every = "".join(full)
        once = sorted(c for c in set(every) if every.count(c) == 1 and c not in ellipsis)
        target = ellipsis + "".join(once)
    order = target + "".join(sorted(set("".join(full)) - set(target)))
    if any(len(set(label)) != len(label) for label in full):
        raise DataDependent("it takes a diagonal")
    aligned = []
    for tensor, label in zip(tensors, full, strict=True):
        present = [c for c in order if c in label]
        moved = transpose(tensor, [label.index(c) for c in present])
        missing = [place for place, c in enumerate(order) if c not in label]
        aligned.append(insert_axes(moved, missing))
    axes = list(range(len(target), len(order)))
    if not axes:
        aligned = [insert_axes(tensor, [tensor.rank]) for tensor in aligned]
        axes = [len(order)]
    return [drop_axes(contract(aligned, axes), axes)]


def _shifted(tensor: Tensor, zero_point: Tensor | None) -> Tensor:
    """Quantized integers less their zero point, so that a known zero is a zero."""
    wide = cast(tensor, np.dtype(np.int32))
    if zero_point is None:
        return wide
    return subtract(wide, cast(zero_point, np.dtype(np.int32)))


@rule("MatMulInteger", fold=True)
def _matmul_integer(call: Call) -> list[Tensor]:
    a = _shifted(call.tensor(0), _column(call.optional(2)))
    b = _shifted(call.tensor(1), call.optional(3))
    return [matmul(a, b)]


def _column(zero_point: Tensor | None) -> Tensor | None:
    if zero_point is None or zero_point.rank != 1 or zero_point.shape == (1,):
        return zero_point
    return insert_axes(zero_point, [1])


@rule("QLinearMatMul", fold=True)
def _qlinear_matmul(call: Call) -> list[Tensor]:
    a = _shifted(call.tensor(0), _column(call.optional(2)))
    product = matmul(a, _shifted(call.tensor(3), call.optional(5)))
    scales = [join_axes(call.tensor(at), range(call.tensor(at).rank)) for at in (1, 4, 6, 7)]
    flat = [reshape(unknown((1,), s.dtype, [p.reshape(1) for p in s.bits]), (1,)) for s in scales]
    return [opaque([product, *flat], call.tensor(7).dtype)]


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(call: Call) -> list[Tensor]:
    a = _shifted(call.tensor(0), call.optional(4))
    product = matmul(a, _shifted(call.tensor(1), call.optional(5)))
    others = [call.tensor(at) for at in (2, 3, 6) if call.has(at)]
    return [opaque([product, *others], call.tensor(2).dtype)]


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_quantize_matmul(call: Call) -> list[Tensor]:
    # One scale for the whole tensor is taken from all of it: the future scales the past.
    a = call.tensor(0)
    joined = join_axes(a, range(a.rank))
    return [call.reached_by(matmul(joined, call.tensor(1)), 2, 3, 4)]


@rule("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", domain=MICROSOFT)
def _matmul_n_bits(call: Call) -> list[Tensor]:
    a = call.tensor(0)
    shape = (*a.shape[:-1], call.attr("N"))
    result = unknown(shape, a.dtype, reduce_bits(a, [a.rank - 1]))
    return [call.reached_by(result, *range(1, len(call.inputs)))]
