"""Graphs made to be called causal at every length though each leaks at one: none is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from influence_graphs import Builder
from onnx import ModelProto, TensorProto, numpy_helper
from test_every_length import CLAIM, INT, Places

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, positions, prove

F = np.float32
Write = Callable[[Builder, str], str]


def model_of(write: Write, opset: int = 18) -> ModelProto:
    b = Builder(opset)
    return b.model({"y": write(b, b.input("x", ["batch", "tokens", 4]))})


def scores(b: Builder, x: str) -> str:
    return b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))


def attention(b: Builder, x: str, visible: str, value: str = "", fill: float = -np.inf) -> str:
    bias = b("Where", visible, b.const(0.0, F), b.const(fill, F))
    weights = b("Softmax", b("Add", scores(b, x), bias), axis=-1)
    return b("MatMul", weights, value or x)


def opened_late(when: Callable[[Builder, Places], str]) -> Write:
    """Everything is seen from 301 tokens on, where `when` holds, which it does."""

    def write(b: Builder, x: str) -> str:
        p = Places(b, x)
        late = p.op("And", when(b, p), p.longer(300))
        return attention(b, x, p.op("Or", p.causal, late))

    return write


def divided(by: Callable[[Builder, Places], str]) -> Write:
    """Values divided by what is zero at some length, so that 0 times infinity is NaN."""

    def write(b: Builder, x: str) -> str:
        p = Places(b, x)
        return attention(b, x, p.causal, b("Relu", b("Div", x, by(b, p))))

    return write


def cut_sigmoid(b: Builder, p: Places) -> str:
    left = b("Sigmoid", p.cast(p.op("Sub", p.at(300), p.length), TensorProto.FLOAT))
    return b("Cast", b("Cast", left, to=TensorProto.INT64), to=TensorProto.FLOAT)


def sum_over_nothing(b: Builder, p: Places) -> str:
    rest = b("Unsqueeze", p.op("Mod", p.length, 100), b.const([0], INT))
    return b("ReduceSum", b("Exp", b("ConstantOfShape", rest)), b.const([0], INT))


def counted_in_32_bits(b: Builder, x: str) -> str:
    p = Places(b, x)
    step = numpy_helper.from_array(np.array([1 << 20], np.int32))
    steps = b("ConstantOfShape", b("Unsqueeze", p.length, b.const([0], INT)), value=step)
    counted = b("CumSum", steps, b.const(0, INT), exclusive=1)
    column = b("Unsqueeze", b("Cast", counted, to=TensorProto.INT64), b.const([0], INT))
    return attention(b, x, b("LessOrEqual", column, p.op("Mul", p.row, 1 << 20)))


def counted_in_64_bits(b: Builder, x: str) -> str:
    p = Places(b, x)
    step = numpy_helper.from_array(np.array([1 << 54], INT))
    steps = b("ConstantOfShape", b("Unsqueeze", p.length, b.const([0], INT)), value=step)
    counted = b("CumSum", steps, b.const(0, INT), exclusive=1)
    column = b("Unsqueeze", counted, b.const([0], INT))
    row = b("Unsqueeze", counted, b.const([1], INT))
    return attention(b, x, b("LessOrEqual", column, row))


def quotient_in_64_bits(b: Builder, p: Places) -> str:
    """Far more than there are positions, and 2**63 once it is multiplied: from 512 tokens on."""
    quotient = p.op("Div", p.op("Mul", p.length, 1 << 36), 4)
    return p.op("Less", p.op("Mul", quotient, 1 << 20), 0)


def powered(b: Builder, p: Places, power: int) -> str:
    length = result = p.cast(p.length, TensorProto.FLOAT)
    for _ in range(power - 1):
        result = b("Mul", result, length)
    return result


def multiplied_by_what_overflows(b: Builder, x: str) -> str:
    p = Places(b, x)
    return attention(b, x, p.causal, b("Relu", b("Mul", x, powered(b, p, 15))))


def added_up_until_it_overflows(b: Builder, x: str) -> str:
    p = Places(b, x)
    total = p.cast(p.length, TensorProto.FLOAT)
    for _ in range(120):
        total = b("Add", total, total)
    return attention(b, x, p.causal, b("Relu", b("Mul", x, total)))


def summed_products(b: Builder, x: str) -> str:
    p = Places(b, x)
    factor = powered(b, p, 1)
    for _ in range(14):
        row = b("Unsqueeze", factor, b.const([0], INT))
        factor = b("ReduceSum", b("Mul", row, powered(b, p, 1)), b.const([0], INT), keepdims=0)
    return attention(b, x, p.causal, b("Relu", b("Mul", x, factor)))


def multiplied_by_matrices(b: Builder, x: str) -> str:
    p = Places(b, x)
    matrix = b("Mul", b.const(np.ones((4, 4)), F), powered(b, p, 1))
    value = x
    for _ in range(15):
        value = b("MatMul", value, matrix)
    return attention(b, x, p.causal, value)


def rotated(b: Builder, p: Places, x: str, cosine: str) -> str:
    ends = [b.const([1], INT), b("Unsqueeze", p.length, b.const([0], INT)), b.const([2], INT)]
    angles = b("Expand", cosine, b("Concat", *ends, axis=0))
    return b("RotaryEmbedding", x, angles, angles, num_heads=1)


def values_rotated_by_infinity(b: Builder, x: str) -> str:
    p = Places(b, x)
    short = p.cast(p.op("LessOrEqual", p.length, 300), TensorProto.FLOAT)
    value = rotated(b, p, x, b("Div", b.const(1.0, F), short))
    return attention(b, x, p.causal, b("Relu", value))


def finitely_masked(b: Builder, p: Places, x: str, query: str) -> str:
    bias = b("Where", p.causal, b.const(0.0, F), b.const(-1e30, F))
    weights = b("Softmax", b("Add", scores(b, query), bias), axis=-1)
    return b("MatMul", weights, x)


def scores_rotated_by_the_length(b: Builder, x: str) -> str:
    p = Places(b, x)
    return finitely_masked(b, p, x, rotated(b, p, x, powered(b, p, 6)))


def scores_with_a_gain_of_the_length(b: Builder, x: str) -> str:
    p = Places(b, x)
    gain = b("Mul", b.const(np.ones(4), F), powered(b, p, 6))
    return finitely_masked(b, p, x, b("LayerNormalization", x, gain, axis=-1))


def nan_as_true(b: Builder, x: str) -> str:
    p = Places(b, x)
    visible = p.op("And", p.causal, b("Not", p.op("Equal", p.row, 300)))
    bias = b("Where", visible, b.const(0.0, F), b.const(-np.inf, F))
    weights = b("Softmax", b("Add", scores(b, x), bias), axis=-1)
    true = b("Cast", weights, to=TensorProto.BOOL)
    return b("MatMul", b("Cast", true, to=TensorProto.FLOAT), x)


def zero_by_later(b: Builder, x: str) -> str:
    keys = b("Transpose", b("ReduceSum", x, b.const([2], INT)), perm=[0, 2, 1])
    return b("MatMul", b("Div", b("Trilu", scores(b, x), upper=0), keys), x)


def infinity_beside_the_mask(b: Builder, x: str) -> str:
    p = Places(b, x)
    keys = b("Transpose", b("ReduceSum", x, b.const([2], INT)), perm=[0, 2, 1])
    bias = b("Where", p.causal, b.const(0.0, F), b.const(-np.inf, F))
    odd = b("Add", b("Add", scores(b, x), b("Reciprocal", b("Relu", keys))), bias)
    return b("MatMul", b("Softmax", odd, axis=-1), x)


def features_that_are_tokens(b: Builder, x: str) -> str:
    p = Places(b, x)
    turned = b("Transpose", x, perm=[0, 2, 1])
    keys = b.const(np.zeros((1, 4, 4)), F)
    seen = b("Attention", x, keys, turned, q_num_heads=1, kv_num_heads=1)
    late = p.cast(p.longer(300), TensorProto.FLOAT)
    return b("Add", x, b("Mul", b("ReduceSum", seen, b.const([2], INT)), late))


def mask_cancelled(wash: Callable[[Builder, str], str]) -> Write:
    """The number of a finite mask, turned around, is added to it from 301 tokens on."""

    def write(b: Builder, x: str) -> str:
        x = b("Tanh", x)
        p = Places(b, x)
        late = b("And", b("Not", p.causal), p.longer(300))
        low = b("Where", late, b.const(-3e38, F), b.const(0.0, F))
        against = b("Neg", wash(b, low))
        bias = b("Where", p.causal, b.const(0.0, F), b.const(-3e38, F))
        return b(
            "MatMul", b("Softmax", b("Add", b("Add", scores(b, x), against), bias), axis=-1), x
        )

    return write


def data_places_a_finite_mask(b: Builder, x: str) -> str:
    x = b("Tanh", x)
    p = Places(b, x)
    sums = b("Transpose", b("ReduceSum", x, b.const([2], INT)), perm=[0, 2, 1])
    kept = b("Or", b("Greater", sums, b.const(0.0, F)), b("Not", p.longer(300)))
    low = b.const(-3e38, F)
    return b(
        "MatMul",
        b("Softmax", b("Where", p.causal, b("Where", kept, scores(b, x), low), low), axis=-1),
        x,
    )


def grown_by_length(b: Builder, x: str) -> str:
    x = b("Tanh", x)
    p = Places(b, x)
    large = x
    for factor in (1e5, 1e5, 1e5, 1.2e4):
        large = b("Mul", large, b.const(factor, F))
    large = b("Where", p.longer(300), large, x)
    against = b("MatMul", b("Neg", large), b("Transpose", large, perm=[0, 2, 1]))
    bias = b("Where", p.causal, b.const(0.0, F), b.const(-3e38, F))
    return b("MatMul", b("Softmax", b("Add", against, bias), axis=-1), x)


def saturated(b: Builder, x: str) -> str:
    p = Places(b, x)
    bias = b("Where", p.causal, b.const(0.0, F), b.const(-np.inf, F))
    masked = b("Add", scores(b, x), bias)
    small = b("Cast", b("Cast", masked, to=TensorProto.FLOAT8E4M3FN), to=TensorProto.FLOAT)
    some = b("Where", p.longer(300), b("Mul", small, b.const(0.01, F)), masked)
    return b("MatMul", b("Softmax", some, axis=-1), x)


def equal_in(dtype: int, one: int, other: float) -> Callable[[Builder, Places], str]:
    """A whole number that `dtype` does not have, compared with the one next to it."""

    def when(b: Builder, p: Places) -> str:
        short = b("Cast", b("Cast", p.at(one), to=dtype), to=TensorProto.FLOAT)
        return b("Equal", short, b.const(other, F))

    return when


ATTACKS: dict[str, ModelProto] = {
    "2,049 in float16": model_of(opened_late(equal_in(TensorProto.FLOAT16, 2049, 2048.0))),
    "2^24 + 1 in float32": model_of(
        opened_late(equal_in(TensorProto.FLOAT, 16777217, 16777216.0))
    ),
    "a sum rounded to float32": model_of(
        opened_late(
            lambda b, p: b("Equal", b("Add", b.const(1e8, F), b.const(1.0, F)), b.const(1e8, F))
        )
    ),
    "float64 cast to float32": model_of(
        opened_late(
            lambda b, p: b(
                "Equal",
                b("Cast", b.const(1e8 + 1, np.float64), to=TensorProto.FLOAT),
                b.const(1e8, F),
            )
        )
    ),
    "a count in 32 bits": model_of(counted_in_32_bits),
    "places counted in steps that 64 bits do not hold": model_of(counted_in_64_bits),
    "a quotient multiplied beyond 64 bits": model_of(opened_late(quotient_in_64_bits)),
    "values times a power of the length": model_of(multiplied_by_what_overflows),
    "values times a sum of lengths": model_of(added_up_until_it_overflows),
    "values times sums of products of lengths": model_of(summed_products),
    "values times matrices of the length": model_of(multiplied_by_matrices),
    "values rotated by infinity": model_of(values_rotated_by_infinity, 23),
    "scores rotated by the length": model_of(scores_rotated_by_the_length, 23),
    "scores with a gain of the length": model_of(scores_with_a_gain_of_the_length),
    "a sigmoid cut to a whole number": model_of(divided(cut_sigmoid)),
    "a sum over nothing": model_of(divided(sum_over_nothing)),
    "an exponential of the length": model_of(
        divided(lambda b, p: b("Exp", b("Neg", p.cast(p.length, TensorProto.FLOAT))))
    ),
    "NaN as true": model_of(nan_as_true),
    "zero by what comes later": model_of(zero_by_later),
    "infinity beside the mask": model_of(infinity_beside_the_mask),
    "features that are tokens": model_of(features_that_are_tokens, 23),
    "a mask cancelled by a sum": model_of(
        mask_cancelled(
            lambda b, low: b(
                "ReduceSum", b("Unsqueeze", low, b.const([2], INT)), b.const([2], INT), keepdims=0
            )
        )
    ),
    "a mask cancelled by a maximum": model_of(
        mask_cancelled(lambda b, low: b("Max", low, b.const(np.array([[-3e38]]), F)))
    ),
    "data places a finite mask": model_of(data_places_a_finite_mask),
    "scores grown by the length": model_of(grown_by_length),
    "-inf saturated": model_of(saturated, 19),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_is_causal_at_every_length(attack: str) -> None:
    proof = prove(ATTACKS[attack], CLAIM)
    assert not proof.every_length
    assert proof.other_lengths or proof.verdict is not Verdict.CAUSAL, "it is said why"


def test_places_in_8_bits_are_no_formula() -> None:
    b = Builder(18)
    x, places = b.input("x", ["batch", "tokens", 4]), b.input("at", ["tokens"], TensorProto.UINT8)
    p = Places(b, x)
    column = b("Unsqueeze", b("Cast", places, to=TensorProto.INT64), b.const([0], INT))
    model = b.model({"y": attention(b, x, b("LessOrEqual", column, p.row))})
    claim = Claim(
        tokens={"x": 1, "at": 0}, outputs={"y": 1}, known={"at": positions}, lengths=(1, 2, 5)
    )
    assert not prove(model, claim).every_length


@pytest.mark.parametrize("dim", ["tokens//300", "past_tokens + tokens"])
def test_a_dim_that_may_follow_the_length_is_no_number(dim: str) -> None:
    b = Builder(18)
    x, other = b.input("x", ["batch", "tokens", 4]), b.input("other", [dim])
    p = Places(b, x)
    reach = p.op("Add", p.row, b("Squeeze", b("Shape", other), b.const([0], INT)))
    model = b.model({"y": attention(b, x, b("Less", p.column, reach))})
    assert not prove(model, CLAIM).every_length
