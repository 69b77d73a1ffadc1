"""Rows that depend on how long the input is, though no later value reaches them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from causal_attn.package.certificate import Check
from causal_attn.verify import verify
from causal_attn.verify.report import VariantReport

SUMS = "y = CumSum (x, one)"
SWITCH = """
    above = {compare}
    long = Where (above, two, ones)
    scaled = Mul (x, long)
    y = CumSum (scaled, one)
"""
COUNT = """
    length_float = Cast <to = 1> (length)
    scaled = Div (x, length_float)
    y = CumSum (scaled, one)
"""
BLOCKS = """
    half = Constant <value_int = 2> ()
    part = Div (length, half)
    place = Range (zero, length, one)
    second = GreaterOrEqual (place, part)
    factor = Cast <to = 1> (second)
    column = Unsqueeze (factor, last)
    scaled = Mul (x, column)
    y = CumSum (scaled, one)
"""


def save(path: Path, lines: str, numbers: dict[str, int], past: bool = False) -> Path:
    """Sums along the tokens, of values that `lines` change by ``length``."""
    given = "float[batch, sequence_length, 4] x"
    results = "float[batch, sequence_length, 4] y"
    if past:
        given += ", float[batch, 1, past_sequence_length, 4] past_key_0"
        results += ", float[batch, 1, total, 4] present_key_0"
        lines = f"""
            {lines.replace("y = CumSum (scaled, one)", "")}
            axis = Constant <value_ints = [1]> ()
            new = Unsqueeze (scaled, axis)
            present_key_0 = Concat <axis = 2> (past_key_0, new)
            along = Constant <value_int = 2> ()
            sums = CumSum (present_key_0, along)
            ends = Shape <start = 2, end = 3> (present_key_0)
            from = Shape <start = 2, end = 3> (past_key_0)
            axis_two = Constant <value_ints = [2]> ()
            kept = Slice (sums, from, ends, axis_two)
            y = Squeeze (kept, axis)
        """
    count = "Shape <start = 2, end = 3> (joined)" if past else "Shape <start = 1, end = 2> (x)"
    joined = (
        "lift = Constant <value_ints = [1]> () up = Unsqueeze (x, lift)"
        " joined = Concat <axis = 2> (past_key_0, up)"
        if past
        else ""
    )
    parsed = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g ({given}) => ({results})
        <int64 one = {{1}}, int64 zero = {{0}}, float ones = {{1}}, float two = {{2}},
         int64[1] last = {{-1}}>
        {{ {joined} count = {count} length = Squeeze (count) {lines} }}
        """
    )
    parsed.graph.initializer.extend(
        numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()
    )
    onnx.checker.check_model(parsed)
    onnx.save(parsed, path)
    return path


def report(path: Path) -> VariantReport:
    (one,) = verify(path, lengths=(1, 2, 9)).variants
    return one


def check_of(found: VariantReport, name: str) -> Check:
    (check,) = (check for check in found.certificate.checks if check.name == name)
    return check


@pytest.mark.parametrize("limit", [6, 24, 48, 100, 255])
def test_a_table_exchanged_with_the_length(tmp_path: Path, limit: int) -> None:
    lines = SWITCH.format(compare="Greater (length, limit)")
    found = report(save(tmp_path / "m.onnx", lines, {"limit": limit}))
    check = check_of(found, "prefixes agree")
    assert check.passed is False
    assert "`y` of" in check.detail
    assert "depend on how long the input is" in check.detail


@pytest.mark.parametrize("at", [20, 37, 211])
def test_one_length_that_is_another(tmp_path: Path, at: int) -> None:
    """Only the number in the graph tells which."""
    lines = SWITCH.format(compare="Equal (length, at)")
    found = report(save(tmp_path / "m.onnx", lines, {"at": at}))
    assert check_of(found, "prefixes agree").passed is False


@pytest.mark.parametrize("lines", [COUNT, BLOCKS])
def test_values_that_follow_the_length(tmp_path: Path, lines: str) -> None:
    assert check_of(report(save(tmp_path / "m.onnx", lines, {})), "prefixes agree").passed is False


def test_a_length_far_above_those_of_the_checks(tmp_path: Path) -> None:
    """A number of tokens that the graph compares with is tried, however large."""
    lines = SWITCH.format(compare="Greater (length, limit)")
    found = report(save(tmp_path / "m.onnx", lines, {"limit": 1000}))
    check = check_of(found, "prefixes agree")
    assert check.passed is False
    assert check.figures["whole"] == 1003


def test_rows_that_do_not_depend_on_it(tmp_path: Path) -> None:
    check = check_of(report(save(tmp_path / "m.onnx", SUMS, {})), "prefixes agree")
    assert check.passed is True
    assert check.figures["whole"] == 257
    assert {1, 2, 33, 64, 65, 256} <= set(check.figures["lengths"])
    assert check.detail.startswith("rows of 257 tokens are those of the first 1 to 3, 5, 8, ")


@pytest.mark.parametrize("limit", [6, 24, 48, 120])
def test_decoding_across_an_exchange_differs(tmp_path: Path, limit: int) -> None:
    """What is in the cache was scaled before the switch."""
    lines = SWITCH.format(compare="Greater (length, limit)")
    found = report(save(tmp_path / "m.onnx", lines, {"limit": limit}, past=True))
    check = check_of(found, "decode is equivalent")
    assert check.passed is False
    assert "from the whole of" in check.detail


def test_decoding_is_tried_at_many_lengths(tmp_path: Path) -> None:
    lines = "scaled = Identity (x) y = CumSum (scaled, one)"
    found = report(save(tmp_path / "m.onnx", lines, {}, past=True))
    check = check_of(found, "decode is equivalent")
    assert check.passed is True, check.detail
    assert {11, 257} <= set(check.figures["lengths"])
