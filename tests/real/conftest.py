"""Each graph is exported once for all tests, and verified once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from real_models import build

from causal_attn.verify import Report, verify


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a graph of `real_models.BUILDERS`, by name."""

    @cache
    def built(name: str) -> Path:
        return build(name, tmp_path_factory.mktemp("real") / name)

    return built


@pytest.fixture(scope="session")
def report(graph: Callable[[str], Path]) -> Callable[[str], Report]:
    """What `verify` says of it, with nothing told but its path."""

    @cache
    def verified(name: str) -> Report:
        return verify(graph(name))

    return verified
