"""The probes of the future: what they see, and that noise must not hide it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.verify import verify
from causal_attn.verify.checks.future import check_future_is_invisible
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.subject import read_subjects

NOISE = {
    "none": "y = Identity (sums)",
    "NaN": """
        drawn = RandomUniformLike <low = 0.0, high = 1.0> (x)
        lucky = Less (drawn, half)
        odd = Where (lucky, nan, zero)
        flicker = Where (first, odd, zero)
        y = Add (sums, flicker)
    """,
    "garbage": """
        drawn = RandomNormalLike <scale = 100.0> (x)
        flicker = Where (first, drawn, zero)
        y = Add (sums, flicker)
    """,
    "rounding": """
        drawn = RandomUniformLike <low = 0.9999999, high = 1.0000001> (x)
        y = Mul (sums, drawn)
    """,
}
"""What becomes of ``sums``; ``first`` is true in the first row alone."""


def graph(path: Path, noise: str, *, reverse: int) -> Path:
    """Sums over the tokens, of the past or, in `reverse`, of the future."""
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        sums (float[batch, tokens, 16] x) => (float[batch, tokens, 16] y)
        <int64 one = {{1}}, int64 zero_int = {{0}}, float zero = {{0.0}}, float half = {{0.5}},
         float nan = {{nan}}, int64[2] inner = {{0, 2}}>
        {{
            sums = CumSum <reverse = {reverse}> (x, one)
            shape = Shape <start = 1, end = 2> (x)
            length = Squeeze (shape)
            places = Range (zero_int, length, one)
            at_start = Equal (places, zero_int)
            first = Unsqueeze (at_start, inner)
            {NOISE[noise]}
        }}
        """
    )
    onnx.save(model, path)
    return path


def check(path: Path) -> Check:
    (subject,) = read_subjects(path)
    with subject.open(Provider.CPU) as session:
        found = check_future_is_invisible(
            Trial(session=session, feeder=subject.interface.feeder, lengths=(2, 8))
        )
    assert found is not None
    return found


@pytest.mark.parametrize("noise", ["NaN", "garbage"])
@pytest.mark.parametrize("reverse", [0, 1])
def test_noise_that_is_no_rounding_decides_nothing(
    tmp_path: Path, noise: str, reverse: int
) -> None:
    """Every row of the one in reverse sees the future; none must pass because one flickers."""
    result = check(graph(tmp_path / "m.onnx", noise, reverse=reverse))
    assert (result.name, result.passed) == ("randomness", None)
    assert "`y` differs by" in result.detail


def test_noise_of_rounding_is_allowed_and_hides_nothing(tmp_path: Path) -> None:
    right = check(graph(tmp_path / "right.onnx", "rounding", reverse=0))
    assert right.passed is True
    assert 0 < right.figures["noise"] < 1e-5
    wrong = check(graph(tmp_path / "wrong.onnx", "rounding", reverse=1))
    assert (wrong.name, wrong.passed) == ("future is invisible", False)


def test_without_noise_rows_are_bitwise_equal(tmp_path: Path) -> None:
    right = check(graph(tmp_path / "right.onnx", "none", reverse=0))
    assert right.passed is True
    assert right.figures["noise"] == 0
    assert check(graph(tmp_path / "wrong.onnx", "none", reverse=1)).passed is False


def test_a_graph_that_flickers_is_undecided_to_verify(tmp_path: Path) -> None:
    report = verify(graph(tmp_path / "m.onnx", "garbage", reverse=0), lengths=(1, 2, 8))
    certificate = report.variants[0].certificate
    assert not certificate.passed
    assert "randomness" in {check.name for check in certificate.checks}
