"""A path that data may open or not: without a probe that takes it nothing is decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify import verify
from causal_attn.verify.checks.proof import PROOF
from causal_attn.verify.report import VariantReport

LENGTHS = (1, 2, 9)


def chosen(path: Path, limit: float) -> Path:
    """``x``, or the mean over all tokens where a square of x is below `limit`."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Less", ["square", "limit"], ["some"]),
        helper.make_node("ReduceMean", ["x", "one"], ["mean"]),
        helper.make_node("Where", ["some", "mean", "x"], ["chosen"], name="choose"),
        helper.make_node("CumSum", ["chosen", "axis"], ["y"]),
    ]
    stored = {
        "limit": np.float32(limit), "one": np.array([1]), "axis": np.array(1),
    }  # fmt: skip
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", 4])
        for name in ("x", "y")
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in stored.items()]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    imports = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    return path


def report(path: Path) -> VariantReport:
    (one,) = verify(path, lengths=LENGTHS).variants
    return one


def test_a_choice_that_no_data_makes_is_undecided_by_name(tmp_path: Path) -> None:
    """No square is below -1; the proof does not know that, and says which node it lacks."""
    found = report(chosen(tmp_path / "m.onnx", -1.0))
    assert found.certificate.verdict is Verdict.UNDECIDED
    (proof,) = (check for check in found.certificate.checks if check.name == PROOF)
    assert proof.passed is None
    assert "Where 'choose'" in proof.detail
    assert not any(check.passed is False for check in found.certificate.checks)
    assert verify(tmp_path / "m.onnx", lengths=LENGTHS).exit_code == 3


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_a_choice_that_a_probe_makes_is_a_leak(tmp_path: Path, limit: float) -> None:
    found = report(chosen(tmp_path / "m.onnx", limit))
    assert found.certificate.verdict is Verdict.NOT_CAUSAL


def test_a_path_without_a_choice_needs_no_probe(tmp_path: Path) -> None:
    """What is multiplied by 1e-30 is rounded away, and it is there."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64[1] one = {1}, float tiny = {1e-30}, int64 axis = {1}> {
            mean = ReduceMean (x, one)
            small = Mul (mean, tiny)
            kept = Add (x, small)
            y = CumSum (kept, axis)
        }
        """
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert report(tmp_path / "m.onnx").certificate.verdict is Verdict.NOT_CAUSAL
