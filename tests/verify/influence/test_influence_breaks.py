"""Graphs that leak the future and were once called causal; none may be again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from influence_graphs import Builder, allowed, decoder, single
from onnx import TensorProto, helper

from causal_attn.errors import CausalAttnError, PackageError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT = np.float32
Leak = Callable[[Builder, str, str], str]


def leak(make: Leak, opset: int = 18) -> Proof:
    """The proof of ``make(builder, x, mean over all tokens)``, which may hide the mean or not."""
    b = Builder(opset)
    x = b.input("x", ["b", "tokens", 4])
    axes = [b.const([1], np.int64)] if opset >= 18 else []
    old: dict[str, Any] = {} if opset >= 18 else {"axes": [1]}
    mean = b("ReduceMean", x, *axes, **old)
    y = b("Add", x, make(b, x, mean))
    model = b.model({"y": y}, None)
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 4]))


def chosen(b: Builder, mean: str, condition: str) -> str:
    """The mean where a known condition holds."""
    return b("Where", condition, mean, b.const(0.0, FLOAT))


@pytest.mark.parametrize(
    ("value", "attributes", "found"),
    [
        (-np.inf, {"detect_negative": 0}, False),
        (np.inf, {"detect_positive": 0}, False),
        (np.inf, {"detect_negative": 0}, True),
        (-np.inf, {}, True),
    ],
)
def test_infinities_of_one_sign(value: float, attributes: dict[str, int], found: bool) -> None:
    def make(b: Builder, x: str, mean: str) -> str:
        infinite = b("IsInf", b.const([value], FLOAT), **attributes)
        return chosen(b, mean, infinite)

    assert leak(make, 20).verdict is (Verdict.NOT_CAUSAL if found else Verdict.CAUSAL)
    assert leak(
        lambda b, x, mean: chosen(
            b, mean, b("Not", b("IsInf", b.const([value], FLOAT), **attributes))
        ),
        20,
    ).verdict is (Verdict.CAUSAL if found else Verdict.NOT_CAUSAL)


def test_root_of_an_integer() -> None:
    def make(b: Builder, x: str, mean: str) -> str:
        two = b("Pow", b.const([4], np.int64), b.const([0.5], FLOAT))
        return chosen(b, mean, b("Equal", two, b.const([2], np.int64)))

    assert leak(make).verdict is Verdict.NOT_CAUSAL


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 1])
def test_old_softmax_normalizes_all_trailing_axes(op: str, axis: int | None) -> None:
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    model = single(op, ["b", 4, 3], opset=11, **attributes)
    proof = prove(model, Claim(tokens={"x0": 1}, outputs={"y": 1}, lengths=[4]))
    assert proof.outputs["y"].all()
    model = single(op, ["b", 4, 3], opset=13)
    proof = prove(model, Claim(tokens={"x0": 1}, outputs={"y": 1}, lengths=[4]))
    assert np.array_equal(proof.outputs["y"], np.eye(4, dtype=bool))


def test_hardmax_of_nothing_but_minus_infinity_has_a_one() -> None:
    def make(b: Builder, x: str, mean: str) -> str:
        hard = b("Hardmax", b.const(np.full((1, 1, 4), -np.inf), FLOAT))
        return chosen(b, mean, b("Equal", hard, b.const(1.0, FLOAT)))

    assert leak(make).verdict is not Verdict.CAUSAL


@pytest.mark.parametrize("to", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_narrow_floats_saturate(to: int) -> None:
    def make(b: Builder, x: str, mean: str) -> str:
        narrow = b("Cast", b.const([1e9], FLOAT), to=to)
        wide = b("Cast", narrow, to=TensorProto.FLOAT)
        return chosen(b, mean, b("Less", wide, b.const(1e6, FLOAT)))

    assert leak(make, 19).verdict is not Verdict.CAUSAL


def test_quantizing_to_narrow_floats_saturates() -> None:
    def make(b: Builder, x: str, mean: str) -> str:
        zero = b.const(0, ml_dtypes.float8_e4m3fn)
        scale = b.const(1.0, FLOAT)
        narrow = b("QuantizeLinear", b.const([1e9], FLOAT), scale, zero)
        wide = b("DequantizeLinear", narrow, scale, zero)
        return chosen(b, mean, b("Less", wide, b.const(1e6, FLOAT)))

    assert leak(make, 19).verdict is not Verdict.CAUSAL


GROUPED: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 2, "domain": "com.microsoft"}


@pytest.mark.parametrize("at", [7, 8, 9, 10, 11])
@pytest.mark.parametrize("data", [False, True])
def test_grouped_attention_reads_its_optional_inputs(at: int, data: bool) -> None:
    b = Builder()
    x = b.input("x", [1, 4, 32])
    ids = b.input("ids", [1, 4], TensorProto.INT64)
    spot = b("ReduceMean", x, keepdims=1) if data else b.const(np.ones((1, 1, 1)), FLOAT)
    flat = b("Reshape", spot, b.const([1, 1], np.int64))
    given = {
        7: b("Expand", flat, b.const([4, 8], np.int64)),
        8: b("Expand", flat, b.const([4, 8], np.int64)),
        9: b("Expand", b("Cast", flat, to=TensorProto.INT64), b.const([1, 4], np.int64)),
        10: b("Expand", spot, b.const([1, 2, 4, 4], np.int64)),
        11: b("Expand", b("Reshape", spot, b.const([1], np.int64)), b.const([2], np.int64)),
    }
    cache = b.const(np.ones((4, 8)), FLOAT)
    inputs = [x, x, x, "", "", b.const([3], np.int32), b.const(4, np.int32), cache, cache]
    inputs += [""] * (12 - len(inputs))
    inputs[at] = given[at]
    y = b("GroupQueryAttention", *inputs, do_rotary=1, **GROUPED)
    model = b.model({"y": y, "seen": ids}, None)
    proof = prove(model, Claim(tokens={"x": 1, "ids": 1}, outputs={"y": 1}))
    assert proof.verdict is (Verdict.NOT_CAUSAL if data else Verdict.CAUSAL), str(proof)


def test_positions_of_grouped_attention_are_those_of_their_tokens() -> None:
    b = Builder()
    x = b.input("x", [1, 4, 32])
    ids = b.input("ids", [1, 4], TensorProto.INT64)
    cache = b.const(np.ones((4, 8)), FLOAT)
    inputs = [x, x, x, "", "", b.const([3], np.int32), b.const(4, np.int32), cache, cache, ids]
    y = b("GroupQueryAttention", *inputs, do_rotary=1, **GROUPED)
    proof = prove(b.model({"y": y}, None), Claim(tokens={"x": 1, "ids": 1}, outputs={"y": 1}))
    assert proof.verdict is Verdict.CAUSAL, str(proof)


def averaging(name: str, domain: str, overload: str = "") -> onnx.FunctionProto:
    """A function that adds the mean over the tokens, or passes its input on: ``overload``."""
    mean = helper.make_node("ReduceMean", ["a"], ["m"], axes=[1])
    body = [mean, helper.make_node("Add", ["a", "m"], ["r"])]
    if overload == "same":
        body = [helper.make_node("Identity", ["a"], ["r"])]
    imports = [helper.make_opsetid("", 13)]
    function = helper.make_function(domain, name, ["a"], ["r"], body, imports)
    function.overload = overload
    return function


def calling(op: str, domain: str, *functions: onnx.FunctionProto, overload: str = "") -> Proof:
    b = Builder(13)
    x = b.input("x", ["b", "tokens", 4])
    place: dict[str, Any] = {"domain": domain} if domain else {}
    y = b(op, x, **place)
    b.nodes[-1].overload = overload
    model = b.model({"y": y}, None)
    model.ir_version = 10
    model.functions.extend(functions)
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[4]))


@pytest.mark.parametrize(
    ("overload", "verdict"), [("mean", Verdict.NOT_CAUSAL), ("same", Verdict.CAUSAL)]
)
@pytest.mark.parametrize("order", [("same", "mean"), ("mean", "same")])
def test_overloads_of_a_function(overload: str, verdict: Verdict, order: tuple[str, str]) -> None:
    functions = [averaging("F", "local", each) for each in order]
    assert calling("F", "local", *functions, overload=overload).verdict is verdict
    assert calling("F", "local", *functions, overload="none").verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("overload", ["mean", "same"])
def test_function_with_the_name_of_an_operator_is_undecided(overload: str) -> None:
    function = averaging("Relu", "", overload)
    function.overload = ""
    assert calling("Relu", "", function).verdict is Verdict.UNDECIDED


def test_function_with_inputs_left_out() -> None:
    inner = helper.make_node("Clip", ["a", "b", "c"], ["k"])
    body = [inner, helper.make_node("Identity", ["k"], ["r"])]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "F", ["a", "b", "c"], ["r"], body, imports)
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    y = b("F", x, "", b.const(1.0, FLOAT), domain="local")
    z = b("F", y, domain="local")
    model = b.model({"y": z}, None)
    model.functions.append(function)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[4]))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.eye(4, dtype=bool))


def plain() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    return b.model({"y": b("Mul", x, b.const(np.ones(4), FLOAT))}, None)


def truncated(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = b"123"


def negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def no_bytes(model: onnx.ModelProto) -> None:
    node = model.graph.node.add(op_type="Constant", output=["c"])
    node.attribute.append(helper.make_attribute("value", model.graph.initializer[0]))
    node.attribute[0].t.raw_data = b"123"


@pytest.mark.parametrize("damage", [truncated, negative, no_bytes])
def test_damage_is_a_package_error(damage: Callable[[onnx.ModelProto], None]) -> None:
    model = plain()
    damage(model)
    with pytest.raises(PackageError):
        prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}))


def test_nothing_but_package_errors_comes_of_damaged_bytes() -> None:
    """Bytes changed at random, names that are no text among them."""
    random = np.random.default_rng(5)
    stored = np.frombuffer(decoder(layers=1, heads=1, width=2).SerializeToString(), np.uint8)
    refused = read = 0
    for _ in range(300):
        damaged = stored.copy()
        damaged[random.integers(0, stored.size, 2)] = random.integers(0, 256, 2)
        model = onnx.ModelProto()
        try:
            model.ParseFromString(damaged.tobytes())
        except DecodeError:
            continue
        try:
            prove(model, Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=[2]))
            read += 1
        except CausalAttnError:
            refused += 1
    assert refused
    assert read


@pytest.mark.parametrize("length", [1, 4])
def test_outputs_without_rows_and_scalars(length: int) -> None:
    b = Builder()
    x = b.input("x", ["b", length, 4])
    empty = b("Slice", x, *(b.const([at], np.int64) for at in (0, 0, 1)))
    model = b.model({"y": empty}, None)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}))
    assert proof.verdict is Verdict.CAUSAL
    b = Builder()
    x = b.input("x", ["b", length, 4])
    model = b.model({"y": b("ReduceSum", x, keepdims=0)}, None)
    with pytest.raises(PackageError, match="axis"):
        prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}))


def zero(b: Builder) -> str:
    return b.const(0.0, FLOAT)


def signed_zero(b: Builder, mean: str) -> str:
    positive = b("Greater", mean, zero(b))
    return b("Where", positive, b.const(0.0, FLOAT), b.const(-0.0, FLOAT))


def spot(b: Builder, mean: str) -> str:
    """One element of the mean, as a scalar."""
    flat = b("Reshape", mean, b.const([-1], np.int64))
    return b("Gather", flat, b.const(0, np.int64))


SHOWN: dict[str, Leak] = {
    "1 / where(c, 0, -0)": lambda b, x, m: b("Div", b.const(1.0, FLOAT), signed_zero(b, m)),
    "1 / (0 * mean)": lambda b, x, m: b("Div", b.const(1.0, FLOAT), b("Mul", m, zero(b))),
    "reciprocal(0 * mean)": lambda b, x, m: b("Reciprocal", b("Mul", m, zero(b))),
    "(0 * mean) ** -1": lambda b, x, m: b("Pow", b("Mul", m, zero(b)), b.const(-1.0, FLOAT)),
    "1 / (mean / inf)": lambda b, x, m: b(
        "Div", b.const(1.0, FLOAT), b("Div", m, b.const(np.inf, FLOAT))
    ),
    "0 / relu(mean)": lambda b, x, m: b("Div", zero(b), b("Relu", m)),
    "0 * log(relu(mean))": lambda b, x, m: b("Mul", zero(b), b("Log", b("Relu", m))),
    "log(relu(mean)) * 0": lambda b, x, m: b("Mul", b("Log", b("Relu", m)), zero(b)),
    "0 * sqrt(mean)": lambda b, x, m: b("Mul", zero(b), b("Sqrt", m)),
    "0 * reciprocal(relu(mean))": lambda b, x, m: b("Mul", zero(b), b("Reciprocal", b("Relu", m))),
    "0 * acos(mean)": lambda b, x, m: b("Mul", zero(b), b("Acos", m)),
    "0 * mean ** 0.5": lambda b, x, m: b("Mul", zero(b), b("Pow", m, b.const(0.5, FLOAT))),
    "isnan(0 @ log(relu(mean)))": lambda b, x, m: b(
        "Cast",
        b("IsNaN", b("MatMul", b("Log", b("Relu", m)), b.const(np.zeros((4, 4)), FLOAT))),
        to=TensorProto.FLOAT,
    ),
    "argmax(0 @ log(relu(mean)))": lambda b, x, m: b(
        "Cast",
        b(
            "ArgMax",
            b("MatMul", b("Log", b("Relu", m)), b.const(np.zeros((4, 4)), FLOAT)),
            axis=-1,
        ),
        to=TensorProto.FLOAT,
    ),
    "unknown(0 * mean)": lambda b, x, m: b("Mystery", b("Mul", m, zero(b))),
    "quantized 0 / relu(mean)": lambda b, x, m: b(
        "DequantizeLinear",
        b("QuantizeLinear", zero(b), spot(b, b("Relu", m)), b.const(0, np.int8)),
        b.const(1.0, FLOAT),
        b.const(0, np.int8),
    ),
    "0 * scale log(relu(mean))": lambda b, x, m: b(
        "DequantizeLinear",
        b.const(0, np.int8),
        spot(b, b("Log", b("Relu", m))),
        b.const(0, np.int8),
    ),
    "z == z": lambda b, x, m: b(
        "Cast",
        b("Equal", *[b("MatMul", b("Log", b("Relu", m)), b.const(np.zeros((4, 4)), FLOAT))] * 2),
        to=TensorProto.FLOAT,
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_zeros_that_show_what_they_were_made_of(name: str) -> None:
    proof = leak(SHOWN[name])
    assert proof.verdict in (Verdict.UNDECIDED, Verdict.NOT_CAUSAL), str(proof)


def test_zero_made_in_a_function() -> None:
    body = [helper.make_node("Mul", ["m", "z"], ["r"])]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "F", ["m", "z"], ["r"], body, imports)
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    mean = b("ReduceMean", x, b.const([1], np.int64))
    hidden = b("F", mean, zero(b), domain="local")
    model = b.model({"y": b("Add", x, b("Reciprocal", hidden))}, None)
    model.functions.append(function)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[4]))
    assert proof.verdict is Verdict.UNDECIDED


def test_zero_made_in_a_branch() -> None:
    result = [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]

    def make(b: Builder, x: str, mean: str) -> str:
        nodes = [helper.make_node("Mul", [mean, zero(b)], ["r"])]
        branch = helper.make_graph(nodes, "branch", [], result)
        made = b("If", b.const(True), then_branch=branch, else_branch=branch)
        return b("Reciprocal", made)

    assert leak(make).verdict is Verdict.UNDECIDED


HARMLESS: dict[str, Leak] = {
    "0 * mean": lambda b, x, m: b("Mul", m, zero(b)),
    "0 / (mean ** 2 + eps)": lambda b, x, m: b(
        "Div",
        zero(b),
        b("Add", b("Pow", m, b.const(2.0, FLOAT)), b.const(1e-5, FLOAT)),
    ),
    "0 * rsqrt(mean ** 2 + eps)": lambda b, x, m: b(
        "Mul",
        zero(b),
        b("Reciprocal", b("Sqrt", b("Add", b("Mul", m, m), b.const(1e-5, FLOAT)))),
    ),
    "0 * mean / max(norm, eps)": lambda b, x, m: b(
        "Mul", zero(b), b("Div", m, b("Max", b("ReduceL2", m), b.const(1e-5, FLOAT)))
    ),
    "where(c, 0, 0)": lambda b, x, m: b("Where", b("Greater", m, zero(b)), zero(b), zero(b)),
    "isnan(0 * mean)": lambda b, x, m: b(
        "Cast", b("IsNaN", b("Mul", m, zero(b))), to=TensorProto.FLOAT
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_zeros_that_show_nothing(name: str) -> None:
    proof = leak(HARMLESS[name])
    assert proof.verdict is Verdict.CAUSAL, str(proof)


def test_weights_by_hand_are_causal() -> None:
    """Softmax of masked scores as its formula, on values that a quotient made."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    values = b("Div", x, b("Relu", x))
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    filler = b.const(-np.inf, FLOAT)
    scores = b("Where", allowed(b, x), scores, filler)
    last = b.const([2], np.int64)
    exp = b("Exp", b("Sub", scores, b("ReduceMax", scores, last)))
    weights = b("Div", exp, b("ReduceSum", exp, last))
    model = b.model({"y": b("MatMul", weights, values)}, None)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 4]))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.tri(4, dtype=bool))
