"""Shape arithmetic and generated tensors: nothing of the data is in them."""

from __future__ import annotations

import numpy as np

from causal_attn.verify.influence.graph import Stored, numpy_dtype
from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.combine import opaque
from causal_attn.verify.influence.tensor import Tensor, make

__all__: list[str] = []


@rule("Shape")
def _shape(call: Call) -> list[Tensor]:
    shape = call.tensor(0).shape
    return [call.constant(shape[call.attr("start", 0) : call.attr("end")], np.int64)]


@rule("Size")
def _size(call: Call) -> list[Tensor]:
    return [call.constant(call.tensor(0).size, np.int64)]


@rule("Constant")
def _constant(call: Call) -> list[Tensor]:
    stored = call.attr("value")
    if isinstance(stored, Stored):
        return [stored.tensor(call.mode.words)]
    for name, dtype in (
        ("value_float", np.float32), ("value_floats", np.float32),
        ("value_int", np.int64), ("value_ints", np.int64),
    ):  # fmt: skip
        if call.attr(name) is not None:
            return [call.constant(call.attr(name), dtype)]
    raise DataDependent("it holds a sparse tensor or strings")


@rule("ConstantOfShape")
def _constant_of_shape(call: Call) -> list[Tensor]:
    shape = tuple(int(dim) for dim in call.values(0))
    stored = call.attr("value")
    value = np.zeros((), np.float32)
    if isinstance(stored, Stored) and stored.values is not None:
        value = stored.values.reshape(())
    filled = call.constant(value)
    ones = (1,) * len(shape)
    known, low = filled.known.reshape(ones), filled.low.reshape(ones)
    return [make(shape, value.dtype, [b.reshape(ones) for b in filled.bits], known, low)]


@rule("Range")
@rule("Range", domain=MICROSOFT)
def _range(call: Call) -> list[Tensor]:
    start, limit = call.values(0).reshape(-1)[0], call.values(1).reshape(-1)[0]
    delta = call.values(2).reshape(-1)[0] if call.has(2) else 1
    return [call.constant(np.arange(start, limit, delta, dtype=call.tensor(0).dtype))]


@rule("EyeLike")
def _eye_like(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    number = call.attr("dtype")
    dtype = numpy_dtype(number) if number else tensor.dtype
    return [
        call.constant(np.eye(tensor.shape[0], tensor.shape[1], k=call.attr("k", 0)).astype(dtype))
    ]


@rule("RandomNormal", "RandomUniform")
def _random(call: Call) -> list[Tensor]:
    return [call.silent(tuple(call.attr("shape")), numpy_dtype(call.attr("dtype", 1)))]


@rule("RandomNormalLike", "RandomUniformLike")
def _random_like(call: Call) -> list[Tensor]:
    tensor = call.tensor(0)
    number = call.attr("dtype")
    return [call.silent(tensor.shape, numpy_dtype(number) if number else tensor.dtype)]


@rule("OneHot", fold=True)
def _one_hot(call: Call) -> list[Tensor]:
    indices = call.tensor(0)
    depth = int(call.values(1).reshape(-1)[0])
    axis = call.attr("axis", -1) % (indices.rank + 1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    bits = [np.expand_dims(plane, axis) for plane in indices.bits]
    spread = make(shape, call.tensor(2).dtype, bits, np.zeros((), bool), np.zeros(()))
    return [opaque([spread], spread.dtype)]


@rule("NonZero", "Unique", fold=True)
def _data_dependent_size(call: Call) -> list[Tensor]:
    raise DataDependent("the size of its result depends on data")


@rule("OptionalHasElement")
def _optional_has_element(call: Call) -> list[Tensor]:
    return [call.constant(call.has(0), bool)]
