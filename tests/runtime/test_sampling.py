"""Options of sampling, each against its own definition, and the draws against their shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from causal_attn.errors import EngineError, UsageError
from causal_attn.runtime.generate.sampling import Sampler, Sampling, SamplingOptions

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.25, 0.05], np.float32))


def allowed(**options: object) -> list[int]:
    sampling = Sampling(**({"temperature": 1.0} | options))  # type: ignore[arg-type]
    return np.flatnonzero(np.isfinite(Sampler(sampling, []).scores(LOGITS))).tolist()


def test_each_option_keeps_what_it_says() -> None:
    assert allowed() == [0, 1, 2, 3, 4]
    assert allowed(top_k=2) == [1, 3]
    assert allowed(top_k=99) == [0, 1, 2, 3, 4]
    assert allowed(top_p=0.6) == [1, 3]
    assert allowed(top_p=1e-9) == [1]
    assert allowed(min_p=0.49) == [1, 2, 3]
    # The share is that after top_k: 0.4 and 0.25 become 0.62 and 0.38.
    assert allowed(top_k=2, top_p=0.6) == [1]


def test_equals_of_the_last_stay_with_top_k() -> None:
    scores = Sampler(Sampling(temperature=1.0, top_k=1), []).scores(np.zeros(3, np.float32))
    assert np.isfinite(scores).all()


def test_what_was_seen_is_less_likely() -> None:
    logits = np.array([2.0, -2.0, 1.9], np.float32)
    sampler = Sampler(Sampling(repetition_penalty=2.0), seen=[0, 1])
    np.testing.assert_array_equal(sampler.scores(logits), np.array([1.0, -4.0, np.float32(1.9)]))
    assert [sampler.choose(logits) for _ in range(2)] == [2, 0]


def test_draws_follow_the_shares() -> None:
    sampler = Sampler(Sampling(temperature=1.0, seed=5), [])
    counts = np.bincount([sampler.choose(LOGITS) for _ in range(20_000)], minlength=5)
    # Four standard deviations of a share of 0.4 over 20,000 draws are 0.014.
    np.testing.assert_allclose(counts / 20_000, np.exp(LOGITS), atol=0.014)


def test_temperature_sharpens() -> None:
    sampler = Sampler(Sampling(temperature=0.01, seed=5), [])
    assert {sampler.choose(LOGITS) for _ in range(100)} == {1}


@given(
    st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=30),
    st.floats(0, 5),
    st.none() | st.integers(1, 40),
    st.none() | st.floats(0.001, 1),
    st.none() | st.floats(0, 1),
)
def test_something_is_always_chosen(
    logits: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> None:
    options: SamplingOptions = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": 1
    }  # fmt: skip
    array: NDArray[np.float32] = np.array(logits, np.float32)
    before = array.copy()
    sampler = Sampler(Sampling().with_options(options), [])
    scores = sampler.scores(array)
    assert np.isfinite(scores[sampler.choose(array)])
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 1.0]])
def test_logits_that_are_no_numbers_are_an_error(bad: list[float]) -> None:
    with pytest.raises(EngineError, match="overflowed"):
        Sampler(Sampling(), []).choose(np.array(bad, np.float32))


@pytest.mark.parametrize("option", ["temperature", "repetition_penalty", "top_p", "min_p"])
def test_an_int_larger_than_any_float_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"`{option}` must be"):
        Sampling(**{option: 10**400})


@pytest.mark.parametrize("penalty", [1e-100, 1e100])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_penalty_makes_shares_that_are_no_numbers(penalty: float, sign: int) -> None:
    logits = np.array([1, 2, 3, 3e38], np.float32) * np.float32(sign)
    with np.errstate(all="raise", under="ignore"):
        sampler = Sampler(Sampling(temperature=1, repetition_penalty=penalty, seed=0), range(4))
        assert np.isfinite(sampler.scores(logits)).all()
    for refused in (penalty * penalty, 1e-308, 1e308):
        with pytest.raises(UsageError, match="`repetition_penalty` must be from"):
            Sampling(repetition_penalty=refused)
