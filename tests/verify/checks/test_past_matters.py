"""Whether some later position is reached: which one, the graph may say."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.past import check_past_matters
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.subject import read_subjects

BLOCKS = """
    length = Shape <start = 1, end = 2> (x)
    rest = Mod (length, size)
    missing = Sub (size, rest)
    room = Mod (missing, size)
    ends = Concat <axis = 0> (zeros, zero_at, room, zero_at)
    padded = Pad (x, ends)
    blocks = Reshape (padded, shape)
    sums = CumSum (blocks, two)
    flat = Reshape (sums, whole)
    y = Slice (flat, zero_at, length, one_at)
"""


def check(path: Path, lines: str, block: int = 4) -> Check:
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 3] x) => (float[batch, tokens, 3] y)
        <int64 two = {{2}}, int64[1] zero_at = {{0}}, int64[1] one_at = {{1}},
         int64[1] size = {{{block}}}, int64[3] zeros = {{0, 0, 0}}, int64[1] two_back = {{-2}},
         int64[4] shape = {{0, -1, {block}, 3}}, int64[3] whole = {{0, -1, 3}}>
        {{ {lines} }}
        """
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    (subject,) = read_subjects(path)
    with subject.open(Provider.CPU) as session:
        found = check_past_matters(
            Trial(session=session, feeder=subject.interface.feeder, lengths=(1, 13))
        )
    assert found is not None
    return found


@pytest.mark.parametrize("block", [2, 3, 4, 5, 7])
def test_blocks_of_tokens_see_their_past(tmp_path: Path, block: int) -> None:
    found = check(tmp_path / "m.onnx", BLOCKS, block)
    assert found.passed is True, found.detail


def test_rows_that_see_themselves_alone_fail(tmp_path: Path) -> None:
    found = check(tmp_path / "m.onnx", "y = Neg (x)")
    assert found.passed is False
    assert "the past does not reach it" in found.detail


def test_rows_that_do_not_see_themselves_fail(tmp_path: Path) -> None:
    lines = """
        one = Constant <value_int = 1> ()
        y = CumSum <exclusive = 1> (x, one)
    """
    found = check(tmp_path / "m.onnx", lines)
    assert found.passed is False
    assert "itself is not read" in found.detail
