"""Weights of attention mixed across heads by a convolution: what is zero in all stays zero."""

from __future__ import annotations

import numpy as np
import pytest
from influence_graphs import Builder, allowed
from onnx import ModelProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, prove


def talking_heads(
    *,
    bias: float | None = None,
    kernel: tuple[int, int] = (1, 1),
    pads: tuple[int, ...] = (0,) * 4,
) -> ModelProto:
    """One head's weights become two's by a convolution, and both mix the values."""
    b = Builder()
    x = b.input("x", ["b", "tokens", "c"])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    hidden = b.const(-np.inf, np.float32)
    weights = b("Softmax", b("Where", allowed(b, x), scores, hidden), axis=-1)
    one = b.const([1], np.int64)
    filters = b.const(np.full((2, 1, *kernel), 0.5), np.float32)
    biases = [] if bias is None else [b.const([bias, bias], np.float32)]
    heads = b(
        "Conv", b("Unsqueeze", weights, one), filters, *biases,
        kernel_shape=list(kernel), pads=list(pads),
    )  # fmt: skip
    mixed = b("MatMul", heads, b("Unsqueeze", x, one))
    return b.model({"y": b("ReduceSum", mixed, one, keepdims=0)})


def verdict(model: ModelProto) -> Verdict:
    return prove(model, Claim(tokens={"x": 1}, dims={"c": 4})).verdict


@pytest.mark.parametrize("bias", [None, 0.0])
def test_what_no_head_sees_stays_unseen(bias: float | None) -> None:
    assert verdict(talking_heads(bias=bias)) is Verdict.CAUSAL


def test_a_bias_shows_everything() -> None:
    assert verdict(talking_heads(bias=0.1)) is Verdict.NOT_CAUSAL


@pytest.mark.parametrize(
    ("pads", "expected"), [((0, 0, 0, 1), Verdict.CAUSAL), ((0, 1, 0, 0), Verdict.NOT_CAUSAL)]
)
def test_taps_along_the_keys(pads: tuple[int, ...], expected: Verdict) -> None:
    """With the weight of the key after it, the last key that is seen gets a zero; with that of
    the key before it, the first that is hidden is seen."""
    assert verdict(talking_heads(kernel=(1, 2), pads=pads)) is expected
