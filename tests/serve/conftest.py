"""One server for all tests that only ask it something."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The packages that the runtime's tests make are served here.
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from server_process import Server, start, write_language_model

from causal_attn import models


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of a language model with a tokenizer of letters."""
    return write_language_model(tmp_path_factory.mktemp("language") / "package")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with no token that ends an answer."""
    return write_language_model(tmp_path_factory.mktemp("endless") / "package", ends=False)


@pytest.fixture(scope="session")
def server(language: Path, endless: Path) -> Iterator[Server]:
    """The shipped package as ``attention``, and language models: ``letters``, ``endless``."""
    running = start(
        f"attention={models.path('causal_attention')}",
        f"letters={language}",
        f"endless={endless}",
    )
    yield running
    assert running.terminate() == 0
    assert "Traceback" not in "".join(running.other)
