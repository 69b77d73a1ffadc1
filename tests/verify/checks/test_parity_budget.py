"""What honest rounding may be off by: pooled, sampled, and never taken for a fault of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.parity import check_parity
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.oracle.float64 import GraphRun
from causal_attn.verify.oracle.random_rounding import round_at_random
from causal_attn.verify.oracle.yardstick import Yardstick
from causal_attn.verify.subject import read_subjects

LENGTHS = (1, 2, 5, 13, 33, 65)


def graph(path: Path, factor: float = 1.0) -> Path:
    """``x`` after a detour over 1,000 that costs it three digits, times `factor`."""
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        detour (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <float far = {{1000.0}}, float factor = {{{factor}}}>
        {{ up = Add (x, far) down = Sub (up, far) y = Mul (down, factor) }}
        """
    )
    onnx.save(model, path)
    return path


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """The graph without a yardstick. Optimizations off: ONNX Runtime must not undo the detour."""
    (subject,) = read_subjects(graph(tmp_path / "m.onnx"))
    with subject.open(Provider.CPU) as session:
        yield Trial(session=session, feeder=subject.interface.feeder, lengths=LENGTHS)


def passed(trial: Trial, yardstick: Yardstick) -> Check:
    check = check_parity(replace(trial, yardstick=yardstick))
    assert check is not None
    return check


def right(feeds: Feeds) -> Feeds:
    return {"y": feeds["x"]}


def honest(feeds: Feeds) -> Feeds:
    """Plain float32, another way round than the graph has it."""
    far = np.float32(-1000)
    return {"y": (feeds["x"] + far) - far}


def lucky_at_one_token(feeds: Feeds) -> Feeds:
    return right(feeds) if feeds["x"].shape[1] == 1 else honest(feeds)


def test_luck_at_one_length_refuses_nothing(trial: Trial) -> None:
    """By its own length the budget at one token would be a few units in the last place."""
    check = passed(trial, Yardstick(oracle=right, baseline=lucky_at_one_token))
    assert check.passed is True, check.detail


def test_samples_show_what_a_lucky_baseline_hides(trial: Trial, tmp_path: Path) -> None:
    assert passed(trial, Yardstick(oracle=right, baseline=right)).passed is False
    wide = GraphRun(tmp_path / "m.onnx", wide=True)
    check = passed(trial, Yardstick(oracle=right, baseline=right, rounded=wide.rounded))
    assert check.passed is True, check.detail


@pytest.mark.parametrize(("factor", "result"), [(1.0, True), (1.01, False)])
def test_a_call_that_is_worse_conditioned_is_looked_at_again(
    tmp_path: Path, factor: float, result: bool
) -> None:
    """33 tokens have no sample and go over 1,000, others over nothing; a fault is still one."""

    def at_33(path: Path, factor: float) -> Path:
        model = onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 18]>
            detour (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
            <int64[1] at = {{33}}, float[1] none = {{0.0}}, float[1] far = {{1000.0}},
             float[1] one = {{1.0}}, float[1] factor = {{{factor}}}> {{
                size = Shape <start = 1, end = 2> (x)
                here = Equal (size, at)
                way = Where (here, far, none)
                up = Add (x, way)
                down = Sub (up, way)
                times = Where (here, factor, one)
                y = Mul (down, times)
            }}
        """)
        onnx.save(model, path)
        return path

    (subject,) = read_subjects(at_33(tmp_path / "m.onnx", factor))
    wide = GraphRun(at_33(tmp_path / "right.onnx", 1.0), wide=True)
    yardstick = Yardstick(oracle=right, baseline=right, rounded=wide.rounded)
    with subject.open(Provider.CPU) as session:
        trial = Trial(session=session, feeder=subject.interface.feeder, lengths=LENGTHS)
        check = passed(trial, yardstick)
    assert check.passed is result, check.detail
    assert result or "tokens=33" in check.detail


def test_a_fault_of_all_values_is_found_below_the_largest_error(tmp_path: Path) -> None:
    """5e-5 of each value is less than the largest honest error, but not in the mean of many."""
    (subject,) = read_subjects(graph(tmp_path / "wrong.onnx", 1 + 5e-5))
    yardstick = Yardstick(oracle=right, baseline=honest)
    with subject.open(Provider.CPU) as session:
        trial = Trial(session=session, feeder=subject.interface.feeder, lengths=LENGTHS)
        check = passed(trial, yardstick)
    assert check.passed is False
    assert "typically off by" in check.detail


def test_a_wide_run_is_exact_again_after_a_sample(tmp_path: Path) -> None:
    run = GraphRun(graph(tmp_path / "m.onnx"), wide=True)
    x = np.random.default_rng(0).standard_normal((1, 3, 4))
    exact = run({"x": x})["y"]
    first, second = (run.rounded({"x": x}, seed)["y"] for seed in (0, 1))
    assert 1e-6 < np.abs(first - exact).max() < 1e-3
    assert np.array_equal(first, run.rounded({"x": x}, 0)["y"])
    assert not np.array_equal(first, second)
    assert np.array_equal(run({"x": x})["y"], exact)


def test_a_count_that_is_compared_with_one_stays_a_count(tmp_path: Path) -> None:
    """How rows that see no key are found: a sum of truth values below 1."""
    parsed = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64[1] axis = {2}, float[1] one = {1.0}> {
            zero = Sub (x, x)
            large = Greater (x, one)
            seen = Cast <to = 1> (large)
            count = ReduceSum (seen, axis)
            none = Less (count, one)
            y = Where (none, zero, x)
        }
    """)
    onnx.save(parsed, tmp_path / "m.onnx")
    run = GraphRun(tmp_path / "m.onnx", wide=True)
    x = np.full((1, 40, 4), [[0.1, 0.2, 0.3, 3.3]])
    for seed in range(4):
        assert np.abs(run.rounded({"x": x}, seed)["y"] - x).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounding_is_to_a_neighbour_and_right_on_average(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    value = 1 / 3
    drawn = round_at_random(np.full(100_000, value), np.finfo(dtype), rng)
    nearest = dtype(value)
    other = np.nextafter(nearest, dtype(1 if float(nearest) < value else 0))
    neighbours = {float(nearest), float(other)}
    assert set(drawn) == neighbours
    assert abs(drawn.mean() - value) < 0.01 * float(np.finfo(dtype).eps)


def test_what_is_exact_stays() -> None:
    values: NDArray[np.float64] = np.array(
        [0.0, 1.0, 2.0, -4.0, 1000.0, 1e-40, np.inf, -np.inf, np.nan, np.finfo(np.float64).min]
    )
    values[5] = np.float32(1e-40)
    drawn = round_at_random(values, np.finfo(np.float32), np.random.default_rng(0))
    assert np.array_equal(drawn[:-1], values[:-1], equal_nan=True)
    assert drawn[-1] == np.finfo(np.float32).min


@pytest.mark.parametrize(("kept", "result"), [(0.4, None), (0.6, True)])
def test_a_budget_as_large_as_the_values_decides_nothing(
    trial: Trial, kept: float, result: bool | None
) -> None:
    """A graph of zeros would pass too."""

    def coarse(feeds: Feeds) -> Feeds:
        return {"y": feeds["x"] * np.float32(kept)}

    found = passed(trial, Yardstick(oracle=right, baseline=coarse))
    assert found.passed is result, found.detail
    assert ("no fault could be told from rounding" in found.detail) is (result is None)
