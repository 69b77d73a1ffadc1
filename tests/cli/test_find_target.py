"""What a user names on the command line: files under any name, modules of the working folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from causal_attn.cli.find_target import find_target
from causal_attn.errors import UsageError


@pytest.fixture(autouse=True)
def _imports_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("stem", ["json", "numpy", "mine", "not-a-name"])
def test_a_file_is_registered_whatever_its_stem(tmp_path: Path, stem: str) -> None:
    before = sys.modules.get(stem)
    file = tmp_path / f"{stem}.py"
    file.write_text("def function():\n    return __name__\n")
    found = find_target(f"{file}:function")
    module = sys.modules[found.__module__]
    assert module.__file__ == str(file)
    assert module.function is found
    assert found() == found.__module__
    assert sys.modules.get(stem) is before


def test_two_files_of_one_stem_stay_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"def function():\n    return {folder!r}\n")
    one, two = (find_target(f"{tmp_path}/{name}/mine.py:function") for name in ("one", "two"))
    assert (one(), two()) == ("one", "two")
    assert sys.modules[one.__module__].function is one


def test_a_file_finds_its_neighbours_and_hides_no_library(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("value = 3\n")
    (tmp_path / "typer.py").write_text("raise AssertionError('hides the library')\n")
    (tmp_path / "mine.py").write_text(
        "import typer\nfrom neighbour_of_mine import value\n\ndef function():\n    return value\n"
    )
    assert find_target(f"{tmp_path}/mine.py:function")() == 3


def test_a_module_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def function():\n    return 5\n")
    monkeypatch.chdir(tmp_path)
    # As in the process of a console script.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert find_target("only_here:function")() == 5


def test_a_file_that_fails_is_not_registered(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        find_target(f"{tmp_path}/fails.py:f")
    assert set(sys.modules) == before
