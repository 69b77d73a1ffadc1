"""Each graph is exported once for all tests, whatever process they run in."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from real_models import build

from causal_attn.verify import Report, verify


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a graph of `real_models.BUILDERS`, by name."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Workers have folders of their own in the one of the run.
        root = root.parent

    @cache
    def built(name: str) -> Path:
        folder = root / "real" / name
        folder.mkdir(parents=True, exist_ok=True)
        done = folder / "path.txt"
        with FileLock(folder / "lock"):
            if not done.exists():
                done.write_text(str(build(name, folder)))
        return Path(done.read_text())

    return built


@pytest.fixture(scope="session")
def report(graph: Callable[[str], Path]) -> Callable[[str], Report]:
    """What `verify` says of it, with nothing told but its path."""

    @cache
    def verified(name: str) -> Report:
        return verify(graph(name))

    return verified
