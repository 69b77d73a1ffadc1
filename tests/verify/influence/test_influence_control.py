"""Bodies are entered: If, Loop, Scan, sequences, and functions of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from influence_graphs import Builder, single
from onnx import ModelProto, TensorProto, helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(
    name: str, dtype: int = FLOAT, dims: list[int | str] | None = None
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def proof_of(model: ModelProto, axis: int = 1, **options: object) -> Proof:
    return prove(model, Claim(tokens={"x": axis}, outputs={"y": axis}, **options))  # type: ignore[arg-type]


def scan_model(reverse: bool) -> ModelProto:
    """A running sum over the token axis, one step a token."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["next"]),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [info("state", FLOAT, ["b", 4]), info("row", FLOAT, ["b", 4])],
        [info("next", FLOAT, ["b", 4]), info("out", FLOAT, ["b", 4])],
    )
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    start = b.const(np.zeros((1, 4)), np.float32)
    axes = {"scan_input_axes": [1], "scan_output_axes": [1]}
    turns = {f"scan_{way}_directions": [int(reverse)] for way in ("input", "output")}
    y = b("Scan", start, x, outputs=2, body=body, num_scan_inputs=1, **axes, **turns)
    return b.model({"y": f"{y}_1"}, None)


def loop_model(trips: str) -> ModelProto:
    """As many steps as tokens; step i adds row i to the state and collects it."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"], axis=1),
            helper.make_node("Add", ["state", "row"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [info("i", INT64, []), info("going", BOOL, []), info("state", FLOAT, ["b", 4])],
        [info("still", BOOL, []), info("next", FLOAT, ["b", 4]), info("out", FLOAT, ["b", 4])],
    )
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    count = b("Gather", b("Shape", x), b.const(1, np.int64))
    if trips == "data":
        total = b("ReduceSum", x, keepdims=0)
        count = b("Cast", total, to=INT64)
    start = b.const(np.zeros((1, 4)), np.float32)
    y = b("Loop", count, b.const(True), start, outputs=2, body=body)
    return b.model({"y": b("Transpose", f"{y}_1", perm=[1, 0, 2])}, None)


def if_model(condition: str) -> ModelProto:
    """The mean over the tokens on one side, the row itself on the other."""
    mean = helper.make_graph(
        [helper.make_node("ReduceMean", ["x", "axes"], ["all"], keepdims=1),
         helper.make_node("Add", ["x", "all"], ["then"])],
        "then", [], [info("then")],
    )  # fmt: skip
    same = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["else"])], "else", [], [info("else")]
    )
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    b.stored.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    length = b("Gather", b("Shape", x), b.const(1, np.int64))
    test = {
        "longer than 20": lambda: b("Greater", length, b.const(20, np.int64)),
        "never": lambda: b.const(False),
        "data": lambda: b("Greater", b("Gather", b("Flatten", x), b.const(0, np.int64), axis=1),
                          b.const([0.0], np.float32)),
    }[condition]()  # fmt: skip
    return b.model({"y": b("If", test, then_branch=mean, else_branch=same)}, None)


def test_scan_forward_is_causal_and_backward_is_not() -> None:
    assert np.array_equal(proof_of(scan_model(False)).outputs["y"], np.tri(33, dtype=bool))
    assert proof_of(scan_model(False)).verdict is Verdict.CAUSAL
    backward = proof_of(scan_model(True))
    assert backward.verdict is Verdict.NOT_CAUSAL
    assert np.array_equal(backward.outputs["y"], np.tri(33, dtype=bool).T)


def test_loop_is_entered_step_by_step() -> None:
    proof = proof_of(loop_model("length"), lengths=[1, 6])
    assert proof.verdict is Verdict.CAUSAL
    assert np.array_equal(proof.outputs["y"], np.tri(6, dtype=bool))


def test_loop_with_steps_counted_by_data_is_undecided() -> None:
    proof = proof_of(loop_model("data"))
    assert proof.verdict is Verdict.UNDECIDED
    assert "Loop" in proof.undecided[0]


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        ("never", Verdict.CAUSAL),
        # Only a length never traced takes the other side (trap 3).
        ("longer than 20", Verdict.NOT_CAUSAL),
        ("data", Verdict.NOT_CAUSAL),
    ],
)
def test_if(condition: str, verdict: Verdict) -> None:
    proof = proof_of(if_model(condition))
    assert proof.verdict is verdict, str(proof)
    if condition == "longer than 20":
        assert proof.leak is not None
        assert proof.leak.tokens == 33
        assert any(step.startswith("If") for step in proof.leak.path)


def function_model(reverse: int) -> ModelProto:
    summed = helper.make_node("CumSum", ["a", "axis"], ["b"])
    summed.attribute.append(
        onnx.AttributeProto(name="reverse", ref_attr_name="turned", type=onnx.AttributeProto.INT)
    )
    axis = helper.make_node("Constant", [], ["axis"], value_int=1)
    opset = helper.make_opsetid("", 18)
    function = helper.make_function(
        "acme", "Running", ["a"], ["b"], [axis, summed], [opset], ["turned"]
    )
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    model = b.model({"y": b("Running", x, domain="acme", turned=reverse)}, None)
    model.functions.append(function)
    return model


def test_function_is_entered_with_its_attributes() -> None:
    assert proof_of(function_model(0)).verdict is Verdict.CAUSAL
    assert proof_of(function_model(1)).verdict is Verdict.NOT_CAUSAL


def test_sequences_keep_their_items_apart() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    parts = b("SplitToSequence", x, axis=1, keepdims=1)
    y = b("ConcatFromSequence", parts, axis=1)
    proof = proof_of(b.model({"y": y}, None))
    assert np.array_equal(proof.outputs["y"], np.eye(33, dtype=bool))


@pytest.mark.parametrize(
    ("direction", "verdict"),
    [
        ("forward", Verdict.CAUSAL),
        ("reverse", Verdict.NOT_CAUSAL),
        ("bidirectional", Verdict.NOT_CAUSAL),
    ],
)
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent(op: str, gates: int, direction: str, verdict: Verdict) -> None:
    count = 2 if direction == "bidirectional" else 1
    weight = np.full((count, gates * 5, 4), 0.5, np.float32)
    recurrence = np.full((count, gates * 5, 5), 0.5, np.float32)
    b = Builder()
    x = b.input("x", ["tokens", "b", 4])
    y = b(op, x, b.const(weight), b.const(recurrence), hidden_size=5, direction=direction)
    assert proof_of(b.model({"y": y}, None), axis=0).verdict is verdict


@pytest.mark.parametrize(
    ("pads", "kernel", "dilation", "verdict"),
    [
        ([2, 0], [1.0, 1.0, 1.0], 1, Verdict.CAUSAL),
        ([4, 0], [1.0, 1.0, 1.0], 2, Verdict.CAUSAL),
        ([1, 1], [1.0, 1.0, 1.0], 1, Verdict.NOT_CAUSAL),
        ([0, 2], [1.0, 1.0, 1.0], 1, Verdict.NOT_CAUSAL),
        # Taps that are zero look nowhere.
        ([1, 1], [1.0, 1.0, 0.0], 1, Verdict.CAUSAL),
    ],
)
def test_convolution(
    pads: list[int], kernel: list[float], dilation: int, verdict: Verdict
) -> None:
    weight = np.array(kernel, np.float32).reshape(1, 1, 3).repeat(2, 0).repeat(3, 1)
    model = single("Conv", ["b", 3, "tokens"], consts=[weight], pads=pads, dilations=[dilation])
    proof = prove(model, Claim(tokens={"x0": 2}, outputs={"y": 2}))
    assert proof.verdict is verdict


def test_convolution_in_two_dimensions_keeps_the_other_axis_apart() -> None:
    weight = np.ones((2, 3, 3, 3), np.float32)
    model = single("Conv", ["b", 3, "tokens", 5], consts=[weight], pads=[2, 1, 0, 1])
    assert prove(model, Claim(tokens={"x0": 2}, outputs={"y": 2})).verdict is Verdict.CAUSAL


def test_mixing_matrix_over_tokens() -> None:
    b = Builder()
    x = b.input("x", ["b", 7, 4])
    lower = b.const(np.tri(7), np.float32)
    model = b.model({"y": b("MatMul", lower, x)}, None)
    assert proof_of(model).verdict is Verdict.CAUSAL
    b = Builder()
    x = b.input("x", ["b", 7, 4])
    upper = b.const(np.tri(7).T.copy(), np.float32)
    assert proof_of(b.model({"y": b("MatMul", upper, x)}, None)).verdict is Verdict.NOT_CAUSAL


def test_dynamic_quantization_leaks_through_its_scale() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    y = b("DynamicQuantizeLinear", x, outputs=3)
    model = b.model({"y": b("DequantizeLinear", y, f"{y}_1", f"{y}_2")}, None)
    assert proof_of(model).verdict is Verdict.NOT_CAUSAL


def test_static_quantization_keeps_the_mask() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    length = b("Gather", b("Shape", x), b.const(1, np.int64))
    side = b("Unsqueeze", length, b.const([0], np.int64))
    square = b("Expand", b.const(-1000.0, np.float32), b("Concat", side, side, axis=0))
    masked = b("Add", scores, b("Trilu", square, b.const(1, np.int64)))
    scale, zero = b.const(4.0, np.float32), b.const(255, np.uint8)
    stored = b("QuantizeLinear", masked, scale, zero)
    weights = b("Softmax", b("DequantizeLinear", stored, scale, zero))
    proof = proof_of(b.model({"y": b("MatMul", weights, x)}, None))
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.score_bound == pytest.approx((1000 - 104) / 2)
