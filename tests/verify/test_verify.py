"""`verify` without torch: what passes again, and each way in which a graph can be wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from causal_attn import AttentionSpec, models
from causal_attn.errors import PackageError, ProviderError
from causal_attn.package.certificate import Verdict
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.digest import CONTRACT_KEY, write_metadata
from causal_attn.verify import verify

LENGTHS = (1, 2, 13, 33)
DIMS = ("batch", "heads", "tokens", "features")


def attention_model(path: Path, mask: str) -> Path:
    """Decomposed attention whose ``masked`` scores come from the lines of `mask`.

    The lines see ``scores``, ``tokens`` ``[1]`` and ``square`` ``[2]``.
    """
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        attention (float[batch, heads, tokens, features] q,
                   float[batch, heads, tokens, features] k,
                   float[batch, heads, tokens, features] v)
               => (float[batch, heads, tokens, features] output,
                   float[batch, heads, tokens, tokens] weights)
        <float minus_inf = {{-inf}}, float minus_1e4 = {{-1e4}}, float zero = {{0.0}},
         int64 one = {{1}}, int64 two = {{2}}, bool true = {{1}}>
        {{
            tokens = Shape <start = 2, end = 3> (q)
            square = Concat <axis = 0> (tokens, tokens)
            width = Shape <start = 3> (q)
            width_float = Cast <to = 1> (width)
            root = Sqrt (width_float)
            keys = Transpose <perm = [0, 1, 3, 2]> (k)
            product = MatMul (q, keys)
            scores = Div (product, root)
            all = Expand (true, square)
            {mask}
            weights = Softmax <axis = -1> (masked)
            output = MatMul (weights, v)
        }}
        """
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    tensors = {name: TensorContract(name=name, dtype="float32", dims=DIMS) for name in "qkv"}
    contract = Contract(
        inputs=tuple(tensors.values()),
        outputs=(
            TensorContract(name="output", dtype="float32", dims=DIMS),
            TensorContract(
                name="weights", dtype="float32", dims=("batch", "heads", "tokens", "tokens")
            ),
        ),
        form="decomposed",
        opset=18,
        spec=AttentionSpec(),
    )
    write_metadata(path, {CONTRACT_KEY: contract.to_json()})
    return path


RIGHT = "future = Trilu <upper = 1> (all, one) masked = Where (future, minus_inf, scores)"

MUTANTS = {
    "no mask": ("masked = Identity (scores)", "future is invisible"),
    "mask one to the right": (
        "future = Trilu <upper = 1> (all, two) masked = Where (future, minus_inf, scores)",
        "future is invisible",
    ),
    "mask transposed": (
        "past = Trilu <upper = 0> (all, one) seen = Not (past) both = Trilu <upper = 0> (seen)"
        " hidden = Not (past) masked = Where (hidden, scores, scores)",
        "future is invisible",
    ),
    "mask added as -1e4": (
        "future = Trilu <upper = 1> (all, one)"
        " added = Where (future, minus_1e4, zero) masked = Add (scores, added)",
        "future is invisible",
    ),
    "only itself": (
        "future = Trilu <upper = 1> (all, one) past = Transpose <perm = [1, 0]> (future)"
        " other = Or (future, past) masked = Where (other, minus_inf, scores)",
        "past matters",
    ),
}


def test_the_right_graph_passes(tmp_path: Path) -> None:
    report = verify(attention_model(tmp_path / "m.onnx", RIGHT), lengths=LENGTHS)
    assert report.exit_code == 0
    assert report.variants[0].certificate.verdict is Verdict.CAUSAL


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(tmp_path: Path, name: str) -> None:
    mask, check = MUTANTS[name]
    report = verify(attention_model(tmp_path / "m.onnx", mask), lengths=LENGTHS)
    assert report.exit_code == 1
    failed = {c.name for c in report.variants[0].certificate.checks if c.passed is False}
    assert check in failed
    if check == "future is invisible":
        assert report.variants[0].certificate.verdict is Verdict.NOT_CAUSAL


def test_mask_frozen_at_a_length_does_not_run(tmp_path: Path) -> None:
    frozen = (
        "nine = Constant <value_ints = [9, 9]> () big = Expand (true, nine)"
        " future = Trilu <upper = 1> (big, one) masked = Where (future, minus_inf, scores)"
    )
    report = verify(attention_model(tmp_path / "m.onnx", frozen), lengths=LENGTHS)
    assert report.exit_code == 1
    (parity,) = [c for c in report.variants[0].certificate.checks if c.name == "parity"]
    assert "does not run" in parity.detail or "shape" in parity.detail


def test_an_input_that_is_not_read(tmp_path: Path) -> None:
    path = attention_model(tmp_path / "m.onnx", RIGHT)
    model = onnx.load(path)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "v":
                node.input[index] = "k"
    onnx.save(model, path)
    report = verify(path, lengths=LENGTHS)
    checks = {check.name: check for check in report.variants[0].certificate.checks}
    assert checks["inputs are read"].passed is False
    assert "['v'] reach no output" in checks["inputs are read"].detail
    assert checks["parity"].passed is False


def test_a_model_without_a_spec_is_held_against_itself_in_float64(tmp_path: Path) -> None:
    """A cumulative sum is causal; its float64 twin is the oracle."""
    value = numpy_helper.from_array(np.array(1), "axis")
    graph = helper.make_graph(
        [helper.make_node("CumSum", ["x", "axis"], ["y"])],
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", 4])],
        [value],
    )
    path = tmp_path / "m.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path
    )
    tensors = [
        TensorContract(name=name, dtype="float32", dims=("batch", "tokens", 4)) for name in "xy"
    ]
    contract = Contract(inputs=(tensors[0],), outputs=(tensors[1],), form="captured", opset=18)
    write_metadata(path, {CONTRACT_KEY: contract.to_json()})
    assert verify(path, lengths=LENGTHS).exit_code == 0


def test_the_shipped_package_says_what_was_skipped() -> None:
    report = verify(models.path("causal_attention"), lengths=LENGTHS)
    assert report.exit_code == 0
    assert "cuda is not installed here" in report.skipped["causal_attention/cuda"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(PackageError):
        verify(tmp_path / "none")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(PackageError):
        verify(tmp_path / "text.onnx")
    with pytest.raises(ProviderError, match="`provider` must be one"):
        verify(models.path("causal_attention"), provider="tensorrt")
    with pytest.raises(ProviderError, match="`provider` must be one of"):
        verify(models.path("causal_attention"), provider="gpu")


def test_torch_is_never_imported() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from causal_attn import models; from causal_attn.verify import verify; "
        "sys.exit(verify(models.path('causal_attention'), lengths=(1, 2, 13)).exit_code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
