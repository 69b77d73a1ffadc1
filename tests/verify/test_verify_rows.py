"""A second output whose rows are not the tokens is examined too."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from causal_attn.package.certificate import Verdict
from causal_attn.verify import verify
from causal_attn.verify.checks.proof import BATCH_PROOF

LENGTHS = (1, 2, 9)


def model(path: Path, mixed: str, second: str) -> Path:
    """``y``, running sums of ``x``, and ``z``, other rows of `mixed`."""
    parsed = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y, float[rows, width] z)
        <int64 one = {{1}}, int64[1] axes = {{1}}, int64[1] zero = {{0}}, int64[1] end = {{999}},
         int64[1] two = {{2}}, int64[2] flat = {{-1, 4}}>
        {{
            y = CumSum (x, one)
            all = ReduceSum (x, axes)
            open = Add (y, all)
            {second.format(mixed)}
        }}
        """
    )
    onnx.checker.check_model(parsed)
    onnx.save(parsed, path)
    return path


SECONDS = {
    "batch and tokens": "z = Reshape ({}, flat)",
    "tokens and features": "z = Flatten <axis = 1> ({})",
    "every second": "some = Slice ({}, zero, end, axes, two) z = Flatten <axis = 1> (some)",
}


@pytest.mark.parametrize("name", SECONDS)
def test_other_rows_are_examined(tmp_path: Path, name: str) -> None:
    report = verify(model(tmp_path / "m.onnx", "y", SECONDS[name]), lengths=LENGTHS)
    assert report.exit_code == 0


@pytest.mark.parametrize("name", SECONDS)
def test_other_rows_that_see_the_future_fail(tmp_path: Path, name: str) -> None:
    report = verify(model(tmp_path / "m.onnx", "open", SECONDS[name]), lengths=LENGTHS)
    assert report.exit_code == 1
    (one,) = report.variants
    assert one.certificate.verdict is Verdict.NOT_CAUSAL
    assert one.leak is not None
    assert one.leak.output == "z"
    assert not any(check.name == "proof and probes agree" for check in one.certificate.checks)


def test_sequences_that_mix_in_one_direction_fail(tmp_path: Path) -> None:
    """The last sequence of a batch is added to all: no change of an earlier one shows it."""
    second = "last = Constant <value_int = -1> () one_row = Gather (y, last) z = Add ({}, one_row)"
    path = model(tmp_path / "m.onnx", "y", second)
    parsed = onnx.load(path)
    shape = parsed.graph.output[1].type.tensor_type.shape
    shape.CopyFrom(parsed.graph.output[0].type.tensor_type.shape)
    onnx.save(parsed, path)
    (one,) = verify(path, lengths=LENGTHS).variants
    (check,) = (check for check in one.certificate.checks if check.name == BATCH_PROOF)
    assert check.passed is False
    assert "sequence 1 reaches sequence 0 of 'z'" in check.detail
    assert one.certificate.verdict is Verdict.CAUSAL
    assert verify(path, lengths=LENGTHS).exit_code == 1
