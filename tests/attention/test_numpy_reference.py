"""The numpy oracle is the reference: held against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from causal_attn import AttentionSpec, causal_attention
from causal_attn.attention.numpy_reference import attention, run_spec


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    tokens=st.integers(1, 17),
    past=st.integers(0, 9),
    features=st.integers(1, 9),
    scale=st.none() | st.floats(0.01, 3),
    window=st.none() | st.integers(1, 12),
    softcap=st.none() | st.floats(0.5, 30),
    padded=st.booleans(),
    with_sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_numpy_says_what_torch_says(
    batch: int,
    kv_heads: int,
    group: int,
    tokens: int,
    past: int,
    features: int,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    padded: bool,
    with_sinks: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, kv_heads * group, tokens, features))
    k, v = (rng.standard_normal((batch, kv_heads, past + tokens, features)) for _ in range(2))
    lengths = rng.integers(0, past + tokens + 1, batch) if padded else None
    sinks = 3 * rng.standard_normal(kv_heads * group) if with_sinks else None
    options = {"past": past, "scale": scale, "window": window, "softcap": softcap}
    ours = attention(q, k, v, kv_lengths=lengths, sinks=sinks, **options)  # type: ignore[arg-type]
    theirs = causal_attention(
        *(torch.from_numpy(array) for array in (q, k, v)),
        kv_lengths=None if lengths is None else torch.from_numpy(lengths),
        sinks=None if sinks is None else torch.from_numpy(sinks),
        **options,  # type: ignore[arg-type]
    )
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(left, right.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtype_is_that_of_the_feeds(dtype: str) -> None:
    feeds = {name: np.ones((1, 1, 3, 2), dtype) for name in ("q", "k", "v")}
    feeds |= {name: np.ones((1, 1, 2, 2), dtype) for name in ("past_key", "past_value")}
    results = run_spec(AttentionSpec(cache="dynamic"), feeds)  # type: ignore[arg-type]
    assert {name: array.dtype for name, array in results.items()} == dict.fromkeys(
        ("output", "weights", "present_key", "present_value"), np.dtype(dtype)
    )
    assert results["present_key"].shape == (1, 1, 5, 2)
