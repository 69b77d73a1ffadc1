"""Releases of ONNX Runtime, and which of them a graph needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from causal_attn.attention.spec import AttentionSpec
from causal_attn.errors import CheckError, EngineError
from causal_attn.export import export
from causal_attn.export.forms import blocked as form_blocked
from causal_attn.export.forms.blocked_gqa import OLDEST_ONNXRUNTIME
from causal_attn.machine.release import OLDEST, release
from causal_attn.runtime import agreement, load, loading, ort

HEADS = AttentionSpec(num_heads=2, head_dim=8)


@pytest.mark.parametrize(
    ("version", "parts"),
    [("1.24.1", (1, 24)), ("1.9.0+cu12", (1, 9)), ("2.dev1", (2, 1 << 30)), ("3", (3,))],
)
def test_releases_compare_as_numbers(version: str, parts: tuple[int, ...]) -> None:
    assert release(version) == parts


def test_pyproject_asks_for_the_oldest() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert text.count(f"onnxruntime>={OLDEST}") == 1
    assert text.count(f">={OLDEST}") == 2


def exported(folder: Path, spec: AttentionSpec, form: str) -> str:
    package = export(spec, folder, form=form, return_weights=False)
    return package.variants[0].contract.onnxruntime


def test_the_contract_says_what_a_graph_needs(tmp_path: Path) -> None:
    assert exported(tmp_path / "blocked", HEADS, "blocked") == OLDEST_ONNXRUNTIME
    assert exported(tmp_path / "open", AttentionSpec(), "blocked") == OLDEST
    assert exported(tmp_path / "gqa", HEADS, "gqa") == OLDEST


def test_an_older_runtime_is_refused_before_it_sees_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path / "p", HEADS, "blocked")
    monkeypatch.setattr(agreement, "installed_version", lambda: "1.30.0")
    monkeypatch.setattr(loading, "open_engine", None)
    with pytest.raises(EngineError, match=r"ONNX Runtime 1\.30\.0 .* 1\.31 or newer"):
        load(tmp_path / "p")


def test_what_is_written_does_not_depend_on_the_installed_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "installed_version", lambda: "1.30.0")
    monkeypatch.setattr(agreement, "installed_version", lambda: "1.30.0")
    monkeypatch.setattr(form_blocked, "installed_version", lambda: "1.30.0", raising=False)
    with pytest.raises(CheckError, match=r"needs 1\.31 or newer"):
        exported(tmp_path / "p", HEADS, "blocked")
