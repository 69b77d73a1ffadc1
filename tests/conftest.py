"""For all tests."""

from __future__ import annotations

import importlib.util

import pytest
from sampled import SEED


def pytest_report_header() -> str:
    """The seed of slow cases, to run the same ones again."""
    return f"slow cases are sampled: CAUSAL_ATTN_SEED={SEED}"


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share the machine: ``form="auto"`` must not measure on it unless a test is about that.

    Without torch, as in the environment of a service, nothing can be exported.
    """
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("causal_attn.export.choose.measure.load", lambda: 64.0)
