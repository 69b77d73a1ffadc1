"""Sequences of a batch that mix in one direction, or only in some batches, are found."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.batch import check_batch_is_independent
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.subject import read_subjects

MIXES = {
    "the first is added to all": """
        first = Slice (sums, zero_at, one_at, zero_at) y = Add (sums, first)
    """,
    "sums over the batch": "y = CumSum (sums, zero)",
    "sums over the batch from its end": "y = CumSum <reverse = 1> (sums, zero)",
    "the last reads the one before it": """
        before = Slice (sums, two_back, one_back, zero_at)
        others = Slice (sums, zero_at, one_back, zero_at)
        last = Slice (sums, one_back, far, zero_at)
        both = Add (last, before)
        y = Concat <axis = 0> (others, both)
    """,
    "only in a batch of five": """
        size = Shape <start = 0, end = 1> (sums)
        is_five = Equal (size, five)
        factor = Cast <to = 1> (is_five)
        mean = ReduceMean (sums, zero_at)
        added = Mul (mean, factor)
        y = Add (sums, added)
    """,
}


def check(path: Path, lines: str, dim: str = "batch") -> Check:
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[{dim}, tokens, 4] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] zero_at = {{0}}, int64[1] one_at = {{1}},
         int64[1] two_back = {{-2}}, int64[1] one_back = {{-1}}, int64[1] far = {{99}},
         int64[1] five = {{5}}>
        {{ sums = CumSum (x, one) {lines} }}
        """
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    (subject,) = read_subjects(path)
    with subject.open(Provider.CPU) as session:
        trial = Trial(session=session, feeder=subject.interface.feeder, lengths=(1, 9))
        found = check_batch_is_independent(trial)
    assert found is not None
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_sequences_that_mix_are_found(tmp_path: Path, mix: str) -> None:
    found = check(tmp_path / "m.onnx", MIXES[mix])
    assert found.passed is False
    assert "['y'] of sequence" in found.detail


@pytest.mark.parametrize("dim", ["batch", "rows"])
def test_sequences_that_do_not_mix_pass(tmp_path: Path, dim: str) -> None:
    """An output whose axis of sequences has another name is watched too."""
    found = check(tmp_path / "m.onnx", "y = Identity (sums)", dim)
    assert found.passed is True
    assert found.figures == {"batches": [2, 3, 5], "outputs": ["y"]}


def test_an_axis_of_another_name_hides_nothing(tmp_path: Path) -> None:
    assert check(tmp_path / "m.onnx", "y = CumSum (sums, zero)", "rows").passed is False
