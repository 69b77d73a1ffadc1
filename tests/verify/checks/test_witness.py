"""A leak is shown with two inputs and the row that differs, which anyone can run again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

from causal_attn.cli.app import app
from causal_attn.package.certificate import Verdict
from causal_attn.verify import verify
from causal_attn.verify.checks.witness import WITNESS

LENGTHS = (1, 2, 9)


def model(path: Path, leak: str) -> Path:
    """Running sums of ``x``, and where `leak` holds of the number of tokens the sum of all."""
    parsed = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64 one = {{1}}, int64[1] axes = {{1}}, float zero = {{0.0}}>
        {{
            sums = CumSum (x, one)
            all = ReduceSum (x, axes)
            length = Shape <start = 1, end = 2> (x)
            number = Constant <value_ints = [40]> ()
            double = Add (length, length)
            none = Constant <value_ints = [-1]> ()
            some = {leak}
            added = Where (some, all, zero)
            y = Add (sums, added)
        }}
        """
    )
    onnx.checker.check_model(parsed)
    onnx.save(parsed, path)
    return path


ALWAYS, NEVER = "Greater (length, none)", "Equal (length, none)"
AT_20 = "Equal (double, number)"


def test_a_leak_that_no_probe_met_has_a_witness(tmp_path: Path) -> None:
    """The probes do not run at 20 tokens: the proof says where to look, and a run shows it."""
    (one,) = verify(model(tmp_path / "m.onnx", AT_20), lengths=LENGTHS).variants
    assert one.certificate.verdict is Verdict.NOT_CAUSAL
    assert one.witness is not None
    assert one.witness.before["x"].shape[1] == 20
    failed = {check.name for check in one.certificate.checks if check.passed is False}
    assert "proof and probes agree" not in failed
    assert WITNESS in failed


def test_a_causal_graph_has_none(tmp_path: Path) -> None:
    report = verify(model(tmp_path / "m.onnx", NEVER), lengths=LENGTHS)
    assert report.exit_code == 0
    assert report.variants[0].witness is None


@pytest.mark.parametrize("leak", [ALWAYS, AT_20])
def test_the_file_shows_the_leak_when_it_is_run(tmp_path: Path, leak: str) -> None:
    path, file = model(tmp_path / "m.onnx", leak), tmp_path / "w.npz"
    result = CliRunner().invoke(app, ["verify", str(path), "--witness", str(file)])
    assert result.exit_code == 1, result.output
    assert "witness:" in result.output
    with np.load(file) as arrays:
        before, after, row = arrays["before/x"], arrays["after/x"], int(arrays["row"])
        old, new = arrays["old"], arrays["new"]
    changed = (before != after).any((0, 2)).nonzero()[0]
    assert changed.size
    assert row < changed.min()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for given, wanted in ((before, old), (after, new)):
        (y,) = session.run(None, {"x": given})
        assert np.array_equal(np.asarray(y)[:, row], wanted)
    assert not np.array_equal(old, new)


def test_without_a_leak_no_file_is_written(tmp_path: Path) -> None:
    path, file = model(tmp_path / "m.onnx", NEVER), tmp_path / "w.npz"
    arguments = ["verify", str(path), "--witness", str(file), "--lengths", "1,2,9"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "no run shows a leak" in result.output
    assert not file.exists()
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(result.stdout)["variants"][0]["witness"] is None
