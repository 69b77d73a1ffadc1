"""`compare`: what passes, what does not, and that NaN never does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from causal_attn.verify.compare.comparison import BAND_ULP, compare

EPS = float(np.finfo(np.float32).eps)
ONES = np.ones(8)


def noisy(error: float, at: int = 3) -> NDArray[Any]:
    array = ONES.astype(np.float32)
    array[at] += np.float32(error)
    return array


def test_exact_results_pass() -> None:
    comparison = compare(ONES.astype(np.float32), ONES)
    assert comparison.passed
    assert comparison.max_abs == comparison.max_ulp == 0


def test_the_band_is_a_few_units_in_the_last_place() -> None:
    assert compare(noisy(BAND_ULP * EPS), ONES).passed
    beyond = compare(noisy((BAND_ULP + 1) * EPS), ONES)
    assert not beyond.passed
    assert beyond.max_ulp == BAND_ULP + 1
    assert "budget" in beyond.reason


def test_the_budget_is_twice_the_error_of_plain_torch() -> None:
    plain = noisy(100 * EPS, at=0)
    assert compare(noisy(200 * EPS), ONES, plain).passed
    assert not compare(noisy(210 * EPS), ONES, plain).passed


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_not_finite_where_the_oracle_is(wrong: float) -> None:
    actual = ONES.astype(np.float32)
    actual[0] = wrong
    plain = actual.copy()  # plain torch being wrong too is no excuse
    comparison = compare(actual, ONES, plain)
    assert not comparison.passed
    assert comparison.reason


def test_not_finite_where_the_oracle_is_not() -> None:
    oracle = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert compare(oracle.astype(np.float32), oracle).passed
    assert not compare(-oracle.astype(np.float32), oracle).passed


def test_shapes_must_agree() -> None:
    comparison = compare(np.ones((1, 8), np.float32), ONES)
    assert not comparison.passed
    assert "shape [1, 8] where the oracle has [8]" in comparison.reason


def test_integers_and_booleans_are_exact() -> None:
    assert compare(np.arange(4), np.arange(4)).passed
    comparison = compare(np.arange(4), np.array([0, 1, 2, 4]))
    assert comparison.reason == "1 of 4 values differ"
    assert not compare(np.array([True]), np.array([False])).passed


def test_zeros_have_a_budget_of_almost_nothing() -> None:
    assert compare(np.zeros(3, np.float32), np.zeros(3)).passed
    assert not compare(np.full(3, 1e-30, np.float32), np.zeros(3)).passed


def test_large_errors_overflow_to_a_failure() -> None:
    assert not compare(np.full(2, 65504, np.float16), np.array([1e9, 1.0])).passed
