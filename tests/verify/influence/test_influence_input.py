"""What is asked wrongly is refused; weights stay on disk; long and wide models stay cheap."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, decoder, single
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from causal_attn.errors import InputError, PackageError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, ones, positions, prove


def small() -> ModelProto:
    return single("Relu", ["b", "tokens", 4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": {}}, "`tokens` must name"),
        ({"tokens": {"z": 1}}, "got 'z'"),
        ({"tokens": {"x0": 3}}, "must be an axis of 3, got 3"),
        ({"tokens": {"x0": 1}, "outputs": {"z": 1}}, "got 'z'"),
        ({"tokens": {"x0": 1}, "outputs": {}}, "must name an output"),
        ({"tokens": {"x0": 1}}, "`outputs` must be given"),
        ({"tokens": {"x0": 1}, "outputs": {"y": 1}, "lengths": []}, "`lengths` must be"),
        ({"tokens": {"x0": 1}, "outputs": {"y": 1}, "lengths": [0]}, "`lengths` must be"),
        ({"tokens": {"x0": 1}, "outputs": {"y": 1}, "pasts": [-1]}, "`pasts` must be"),
        ({"tokens": {"x0": 1}, "known": {"z": ones}}, "`known` must name"),
        (
            {"tokens": {"x0": 1}, "outputs": {"y": 1}, "known": {"x0": np.ones((3, 7, 9))}},
            "must broadcast",
        ),
    ],
)
def test_wrong_question_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prove(small(), Claim(**options))


def test_outputs_are_found_by_the_name_of_the_token_axis() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    proof = prove(b.model({"y": b("Relu", x)}), Claim(tokens={"x": 1}))
    assert set(proof.outputs) == {"y"}


def test_fixed_token_axis_leaves_one_length() -> None:
    proof = prove(single("Relu", ["b", 7, 4]), Claim(tokens={"x0": 1}, outputs={"y": 1}))
    assert proof.lengths == (7,)


def test_token_axis_counted_from_the_end() -> None:
    proof = prove(small(), Claim(tokens={"x0": -2}, outputs={"y": -2}, lengths=[4]))
    assert np.array_equal(proof.outputs["y"], np.eye(4, dtype=bool))


def test_nodes_out_of_order_are_sorted() -> None:
    model = decoder(layers=1)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    proof = prove(model, Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=[5]))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["logits"], np.tri(5, dtype=bool))


def test_body_out_of_order_is_sorted() -> None:
    result = [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
    nodes = [helper.make_node("Neg", ["h"], ["r"]), helper.make_node("Abs", ["x"], ["h"])]
    branch = helper.make_graph(nodes, "branch", [], result)
    b = Builder()
    b.input("x", ["b", "tokens", 4])
    y = b("If", b.const(True), then_branch=branch, else_branch=branch)
    proof = prove(b.model({"y": y}, None), Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[4]))
    assert proof.verdict is Verdict.CAUSAL, str(proof)


@pytest.mark.parametrize("inputs", [("h", "r"), ("h", "nothing")])
def test_names_that_nothing_writes_first_are_refused(inputs: tuple[str, str]) -> None:
    b = Builder()
    b.input("x", ["b", "tokens", 4])
    b.nodes.append(helper.make_node("Add", list(inputs), ["r"]))
    b.nodes.append(helper.make_node("Add", ["x", "r"], ["h"]))
    with pytest.raises(PackageError, match="must be written by another"):
        prove(b.model({"y": "r"}, None), Claim(tokens={"x": 1}, outputs={"y": 1}))


def test_model_without_a_graph_is_refused() -> None:
    with pytest.raises(PackageError, match="graph with outputs"):
        prove(ModelProto(), Claim(tokens={"x": 1}))


def test_opset_newer_than_onnx_is_refused() -> None:
    model = small()
    model.opset_import[0].version = 999
    with pytest.raises(PackageError, match="opset must be at most"):
        prove(model, Claim(tokens={"x0": 1}, outputs={"y": 1}))


def test_input_without_a_shape_is_undecided() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    b.inputs.append(ValueInfoProto(name="shapeless"))
    model = b.model({"y": b("Add", x, "shapeless")}, None)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}))
    assert proof.verdict is Verdict.UNDECIDED
    assert "shapeless" in proof.undecided[0]


def test_known_inputs_carry_no_position() -> None:
    b = Builder()
    mask = b.input("attention_mask", ["b", "total"], TensorProto.INT64)
    ids = b.input("position_ids", ["b", "tokens"], TensorProto.INT64)
    x = b.input("x", ["b", "tokens", 4])
    total = b("ReduceSum", b("Cast", mask, to=TensorProto.FLOAT), b.const([1], np.int64))
    y = b("Add", b("Add", x, b("Gather", b.weight(99, 4), ids)), total)
    model = b.model({"y": y}, None)
    axes: dict[str, Any] = {
        "tokens": {"x": 1, "position_ids": 1},
        "total": {"attention_mask": 1},
        "outputs": {"y": 1},
        "pasts": [2],
    }
    assert prove(model, Claim(**axes)).verdict is Verdict.NOT_CAUSAL
    proof = prove(model, Claim(**axes, known={"attention_mask": ones, "position_ids": positions}))
    assert proof.verdict is Verdict.CAUSAL
    assert any("taken as fixed" in note for note in proof.notes)


def test_input_that_nothing_reads_is_noted() -> None:
    b = Builder()
    b.input("k", ["b", "tokens", 4])
    q = b.input("q", ["b", "tokens", 4])
    model = b.model({"y": b("Relu", q)})
    proof = prove(model, Claim(tokens={"q": 1, "k": 1}))
    assert any("'k' is read by no node" in note for note in proof.notes)


def stored_weights(folder: Path, count: int) -> None:
    values = np.random.default_rng(0).normal(size=count) + 5.0
    values.astype(np.float32).tofile(folder / "weights.bin")


def test_external_data_is_needed_beside_the_model(tmp_path: Path) -> None:
    model = decoder(layers=1, weights="weights.bin")
    options: dict[str, Any] = {"tokens": {"input_ids": 1}, "outputs": {"logits": 1}}
    with pytest.raises(PackageError, match="`base_dir` must be"):
        prove(model, Claim(**options))
    with pytest.raises(PackageError, match=r"got no file 'weights\.bin'"):
        prove(model, Claim(**options), base_dir=tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 40)
    with pytest.raises(PackageError, match="truncated"):
        prove(model, Claim(**options), base_dir=tmp_path)
    stored_weights(tmp_path, 2000)
    assert prove(model, Claim(**options), base_dir=tmp_path).verdict is Verdict.CAUSAL


def test_external_data_outside_the_folder_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    stored_weights(tmp_path, 2000)
    model = decoder(layers=1, weights="../weights.bin")
    with pytest.raises(PackageError, match="must lie in the model's folder"):
        prove(model, Claim(tokens={"input_ids": 1}, outputs={"logits": 1}), base_dir=inner)
    (inner / "weights.bin").symlink_to(tmp_path / "weights.bin")
    model = decoder(layers=1, weights="weights.bin")
    with pytest.raises(PackageError, match="must lie in the model's folder"):
        prove(model, Claim(tokens={"input_ids": 1}, outputs={"logits": 1}), base_dir=inner)


def test_large_mask_in_external_data_is_read(tmp_path: Path) -> None:
    """A float mask of a megabyte is a mask still, and is read though weights are not."""
    mask = np.where(np.tri(512, dtype=bool), 0.0, -np.inf).astype(np.float32)
    mask.tofile(tmp_path / "weights.bin")
    b = Builder(weights="weights.bin")
    x = b.input("x", ["b", "tokens", 4])
    scores = b("MatMul", x, b("Transpose", x, perm=[0, 2, 1]))
    stored = b.weight(512, 512)
    length = b("Slice", b("Shape", x), *(b.const([at], np.int64) for at in (1, 2)))
    for axis in (0, 1):
        stored = b("Slice", stored, b.const([0], np.int64), length, b.const([axis], np.int64))
    weights = b("Softmax", b("Add", scores, stored))
    model = b.model({"y": b("MatMul", weights, x)}, None)
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}), base_dir=tmp_path)
    assert proof.verdict is Verdict.CAUSAL


def test_twelve_layers_of_768_are_proved_within_seconds_and_megabytes(tmp_path: Path) -> None:
    stored_weights(tmp_path, 768 * 3072)
    model = decoder(layers=12, heads=12, width=768, weights="weights.bin")
    assert 300 <= len(model.graph.node) <= 900
    tracemalloc.start()
    started = time.perf_counter()
    proof = prove(model, Claim(tokens={"input_ids": 1}, outputs={"logits": 1}), base_dir=tmp_path)
    seconds = time.perf_counter() - started
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert proof.verdict is Verdict.CAUSAL
    assert seconds < 30.0
    assert peak_bytes < 256 * 2**20


def test_more_positions_than_a_word_has_bits() -> None:
    proof = prove(decoder(), Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=[130]))
    assert proof.verdict is Verdict.CAUSAL
    assert np.array_equal(proof.outputs["logits"], np.tri(130, dtype=bool))


def test_proof_imports_without_torch_and_onnxruntime() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['onnxruntime'] = None; "
        "import causal_attn.verify.influence"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
