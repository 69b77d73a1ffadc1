"""For all tests."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share the machine: ``form="auto"`` must not measure on it unless a test is about that.

    Without torch, as in the environment of a service, nothing can be exported.
    """
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("causal_attn.export.choose.measure.load", lambda: 64.0)
