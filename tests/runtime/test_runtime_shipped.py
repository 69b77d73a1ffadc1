"""The package that ships, on every provider here, with numpy as the oracle: no torch, no onnx."""

from __future__ import annotations

import numpy as np
import pytest

from causal_attn import AttentionSpec, Provider, models
from causal_attn.attention.example import worked_example
from causal_attn.attention.numpy_reference import run_spec
from causal_attn.errors import UsageError
from causal_attn.runtime import load
from causal_attn.verify.checks.all_checks import run_checks
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.feeder import Feeder, Feeds
from causal_attn.verify.oracle.yardstick import Yardstick

PACKAGE = models.path("causal_attention")


def reference(feeds: Feeds) -> Feeds:
    return run_spec(AttentionSpec(), feeds)


def test_passes_every_check(provider: Provider) -> None:
    with load(PACKAGE, provider) as session:
        trial = Trial(
            session=session,
            feeder=Feeder(contract=session.contract),
            yardstick=Yardstick(oracle=reference, baseline=reference),
        )
        checks = run_checks(trial)
    assert {check.name for check in checks} == {
        "placement", "parity", "prefixes agree", "large inputs", "future is invisible",
        "past matters", "batch is independent", "weights",
    }  # fmt: skip
    assert [check for check in checks if check.passed is not True] == []


def test_agrees_with_the_cpu(provider: Provider) -> None:
    rng = np.random.default_rng(0)
    with load(PACKAGE, provider) as session, load(PACKAGE, "cpu") as cpu:
        for tokens in (1, 2, 33, 129):
            feeds = {
                name: rng.standard_normal((2, 3, tokens, 40)).astype(np.float32) for name in "qkv"
            }
            ours, theirs = session.run(feeds), cpu.run(feeds)
            for name in ours:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=2e-6)


def test_worked_example() -> None:
    with load(PACKAGE) as attention:
        output, weights = attention(**worked_example())
    np.testing.assert_allclose(weights[0, 0, 2], [0.2483, 0.2483, 0.5035], atol=1e-4)
    np.testing.assert_allclose(output[0, 0, 2], [1.5035, 2.0], atol=1e-4)


def test_names() -> None:
    assert models.names() == ("causal_attention",)
    with pytest.raises(UsageError, match=r"`name` must be one of \['causal_attention'\]"):
        models.path("attention")
    with pytest.raises(UsageError):
        models.path("..")
