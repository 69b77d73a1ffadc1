"""A dim that is declared as dynamic runs at other sizes too, but for the end of a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from causal_attn.package.certificate import Check, Verdict
from causal_attn.verify import verify
from causal_attn.verify.report import VariantReport


def save(path: Path, lines: str, dims: str = "batch, tokens, 4", **arrays: object) -> Path:
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[{dims}] x) => (float[{dims}] y)
        <int64 one = {{1}}, int64 zero = {{0}}> {{ sums = CumSum (x, one) {lines} }}
        """
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()
    )
    onnx.save(model, path)
    return path


def report(path: Path) -> VariantReport:
    (one,) = verify(path, lengths=(1, 2, 5)).variants
    return one


def check_of(found: VariantReport) -> Check:
    (check,) = (c for c in found.certificate.checks if c.name == "declared dims run")
    return check


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 0, 4), "'batch' is declared as dynamic, and two sequences do not run"),
        ((3, 0, 4), "'batch' is declared as dynamic and runs at 3 alone"),
        ((0, 9, 4), "'tokens' is declared as dynamic and runs at 9 alone"),
    ],
)
def test_a_frozen_dim_is_a_fault(tmp_path: Path, shape: tuple[int, ...], words: str) -> None:
    """The length of a reshape is that of the example."""
    # Tokens of two sequences in a batch of one are more than those that are added.
    lines = "square = Reshape (sums, shape) y = Add (square, sums)"
    found = report(save(tmp_path / "m.onnx", lines, shape=np.array(shape)))
    check = check_of(found)
    assert check.passed is False
    assert words in check.detail
    assert not found.certificate.passed


def test_the_end_of_a_table_is_none(tmp_path: Path) -> None:
    lines = """
        length = Shape <start = 1, end = 2> (x)
        count = Squeeze (length)
        places = Range (zero, count, one)
        position = Gather (table, places)
        y = Add (sums, position)
    """
    table = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
    found = report(save(tmp_path / "m.onnx", lines, table=table))
    assert check_of(found).passed is True
    assert found.certificate.passed
    assert any(note.startswith("lengths above 12: ") for note in found.not_checked)


@pytest.mark.parametrize(
    ("hide", "verdict"), [(-np.inf, Verdict.CAUSAL), (0.0, Verdict.NOT_CAUSAL)]
)
def test_a_size_that_is_written_as_a_name(tmp_path: Path, hide: float, verdict: Verdict) -> None:
    """The tokens are called ``2``: they are two."""
    lines = """
        turned = Transpose <perm = [0, 2, 1]> (sums)
        scores = MatMul (sums, turned)
        masked = Add (scores, mask)
        weights = Softmax (masked)
        y = MatMul (weights, sums)
    """
    mask = np.array([[0, hide], [0, 0]], np.float32)
    path = save(tmp_path / "m.onnx", lines, mask=mask)
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "2"
    onnx.save(model, path)
    (found,) = verify(path, tokens_axis={"x": 1}).variants
    assert found.certificate.verdict is verdict
    assert found.certificate.passed is (verdict is Verdict.CAUSAL)
