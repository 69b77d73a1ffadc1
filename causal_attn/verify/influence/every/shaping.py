"""Operators that make sizes, and places to count with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from causal_attn.verify.influence.every.affine import (
    Affine,
    Every,
)
from causal_attn.verify.influence.every.run import Call, rule
from causal_attn.verify.influence.every.symbolic import (
    Axis,
    Cases,
    Factor,
    Index,
    Symbolic,
    Unclear,
    width,
)
from causal_attn.verify.influence.graph import Stored

__all__ = ["axis_of_size"]


@rule("Shape")
def _shape(call: Call) -> list[Symbolic]:
    axes = call.tensor(0).axes
    start, end = call.attributes.get("start", 0), call.attributes.get("end", len(axes))
    return [call.run.vector([width(axis) for axis in axes[start:end]])]


@rule("Constant")
def _constant(call: Call) -> list[Symbolic]:
    (name, value), *_ = call.attributes.items()
    if isinstance(value, Stored):
        if value.values is None:
            return [_unread(value)]
        value = np.broadcast_to(value.values, value.shape)
    elif name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise Unclear("it is no number")
    return [call.run.constant(np.asarray(value, np.float32 if "float" in name else None))]


def _unread(stored: Stored) -> Symbolic:
    axes = tuple(() if size == 1 else (Factor(Affine(size)),) for size in stored.shape)
    return Symbolic(axes, stored.dtype)


@rule("ConstantOfShape")
def _constant_of_shape(call: Call) -> list[Symbolic]:
    stored = call.attributes.get("value")
    value = np.zeros((), np.float32)
    if isinstance(stored, Stored):
        if stored.values is None:
            raise Unclear("its value is not read")
        value = np.asarray(stored.values).reshape(())
    axes = [axis_of_size(size) for size in call.run.numbers(call.tensor(0))]
    return [replace(call.run.constant(value), axes=tuple(axes))]


def axis_of_size(size: Affine) -> Axis:
    """An axis that is no rows."""
    return () if size.fixed == 1 else (Factor(size),)


@rule("Range")
def _range(call: Call) -> list[Symbolic]:
    start, limit, step = (call.run.numbers(call.tensor(at))[0] for at in range(3))
    size = limit - start
    if step.fixed != 1 or not call.run.at_most(Affine(), size):
        raise Unclear("it does not count up by one")
    axis = axis_of_size(size)

    def read(index: Index) -> Cases:
        return ((Every(()), start + index[0] if axis else start),)

    return [Symbolic((axis,), call.tensor(0).dtype, read=read)]
