"""Sequences of a batch are told apart as positions are: none may reach a row of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, allowed, decoder
from onnx import ModelProto, TensorProto

from causal_attn.verify.influence import Claim, Independence, positions, prove_independent

FLOAT, INT = np.float32, np.int64
Mix = Callable[[Builder, str], str]


def model(mix: Mix) -> ModelProto:
    """Causal attention, whose result `mix` changes."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    hidden = b("Where", allowed(b, x), scores, b.const(-np.inf, FLOAT))
    y = b("MatMul", b("Softmax", hidden), x)
    return b.model({"y": mix(b, y)}, None)


def first_added(b: Builder, h: str) -> str:
    return b("Add", h, b("Slice", h, b.const([0]), b.const([1]), b.const([0])))


def last_added(b: Builder, h: str) -> str:
    return b("Add", h, b("Slice", h, b.const([-1]), b.const([99]), b.const([0])))


def rolled(b: Builder, h: str) -> str:
    ends = (b.const([1]), b.const([99]), b.const([0]))
    head = b("Slice", h, b.const([0]), b.const([1]), b.const([0]))
    return b("Concat", b("Slice", h, *ends), head, axis=0)


def at_three(b: Builder, h: str) -> str:
    """The mean over the batch, in batches of three alone."""
    three = b("Equal", b("Gather", b("Shape", h), b.const(0, INT), axis=0), b.const(3, INT))
    mean = b("ReduceMean", h, b.const([0], INT))
    return b("Where", three, b("Add", h, mean), h)


def flattened(b: Builder, h: str) -> str:
    """Row by row, batch and tokens in one axis."""
    return b("Tanh", b("Reshape", h, b.const([-1, 4], INT)))


def flattened_and_summed(b: Builder, h: str) -> str:
    return b("CumSum", flattened(b, h), b.const(0, INT))


def tokens_first(b: Builder, h: str) -> str:
    return b("Reshape", b("Transpose", h, perm=[1, 0, 2]), b.const([-1, 4], INT))


MIXING: dict[str, Mix] = {
    "a running sum": lambda b, h: b("CumSum", h, b.const(0, INT)),
    "a running sum from the end": lambda b, h: b("CumSum", h, b.const(0, INT), reverse=1),
    "a mean": lambda b, h: b("Sub", h, b("ReduceMean", h, b.const([0], INT))),
    "the first": first_added,
    "the last": last_added,
    "the next": rolled,
    "in batches of three": at_three,
    "a sum over batch and tokens": flattened_and_summed,
}
APART: dict[str, Mix] = {
    "nothing": lambda b, h: b("Identity", h),
    "a sum over tokens": lambda b, h: b("ReduceSum", h, b.const([1], INT)),
    "batch and tokens in one": flattened,
    "tokens and batch in one": tokens_first,
    "one number for all": lambda b, h: b("ReduceMax", h, keepdims=0),
}


def found(made: ModelProto, **options: Any) -> Independence:
    claim = Claim(tokens={"x": 1}, outputs={"y": 1}, batch={"x": 0}, **options)
    return prove_independent(made, claim)


@pytest.mark.parametrize("name", MIXING)
def test_sequences_that_mix(name: str) -> None:
    result = found(model(MIXING[name]))
    assert result.leak is not None
    assert result.leak.position != result.leak.query
    assert str(result.leak).startswith(f"sequence {result.leak.position} reaches sequence ")
    assert result.leak.path


@pytest.mark.parametrize("name", APART)
def test_sequences_that_stay_apart(name: str) -> None:
    result = found(model(APART[name]))
    assert result.leak is None
    assert result.undecided == ()
    # What all sequences share is no row of any.
    assert result.batches == (() if name == "one number for all" else (2, 3, 5))


def test_a_decoder_keeps_sequences_apart() -> None:
    claim = Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, batch={"input_ids": 0})
    result = prove_independent(decoder(), claim)
    assert (result.batches, result.leak, result.undecided) == ((2, 3, 5), None, ())


@pytest.mark.parametrize("shift", [0, 1])
def test_a_past_that_an_index_reorders(shift: int) -> None:
    """While each sequence goes on from itself none reaches another."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    past = b.input("past", ["b", "past_tokens", 4])
    index = b.input("beam_idx", ["b"], TensorProto.INT64)
    y = b("Add", x, b("ReduceSum", b("Gather", past, index, axis=0), b.const([1], INT)))

    def given(shape: tuple[int, ...], axis: int, before: int) -> Any:
        return (positions(shape, 0, 0) + shift) % shape[0]

    claim = Claim(
        tokens={"x": 1}, past={"past": 1}, outputs={"y": 1}, pasts=(0, 3),
        batch={"x": 0, "past": 0, "beam_idx": 0}, known={"beam_idx": given},
    )  # fmt: skip
    result = prove_independent(b.model({"y": y}, None), claim)
    assert (result.leak is None) is (shift == 0)


def test_a_fixed_batch_is_not_examined_at_others() -> None:
    b = Builder()
    x = b.input("x", [1, "tokens", 4])
    made = b.model({"y": b("CumSum", x, b.const(0, INT))}, None)
    assert found(made) == Independence(batches=())


def test_an_operator_without_a_rule_is_undecided() -> None:
    made = model(lambda b, h: b("Mystery", h, domain="elsewhere"))
    del made.graph.output[0].type.tensor_type.shape.dim[:]
    info = made.graph.value_info.add()
    info.name = made.graph.node[-1].input[0]
    info.type.tensor_type.elem_type = TensorProto.FLOAT
    for dim in ("b", "tokens", 4):
        added = info.type.tensor_type.shape.dim.add()
        if isinstance(dim, str):
            added.dim_param = dim
        else:
            added.dim_value = dim
    result = found(made)
    assert result.leak is None
    assert any("Mystery" in reason for reason in result.undecided)
