"""Which of the wheels that own one module is the one that is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from causal_attn.machine.wheels import installed_wheels

Environment = Callable[..., None]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """Folders on the path, the first one first, each with the wheels unpacked into it."""

    def pretend(**folders: tuple[str, ...]) -> None:
        path = []
        for folder, wheels in folders.items():
            module = tmp_path / folder / "onnxruntime"
            module.mkdir(parents=True)
            (module / "__init__.py").touch()
            for wheel in wheels:
                info = tmp_path / folder / f"{wheel.replace('-', '_')}-1.30.0.dist-info"
                info.mkdir()
                (info / "METADATA").write_text(f"Name: {wheel}\nVersion: 1.30.0\n")
            path.append(str(tmp_path / folder))
        monkeypatch.setattr("sys.path", path)
        installed_wheels.cache_clear()

    yield pretend
    installed_wheels.cache_clear()


def test_wheels_in_one_folder_overwrite_one_another(environment: Environment) -> None:
    environment(one=("onnxruntime", "onnxruntime-gpu"))
    assert set(installed_wheels()) == {"onnxruntime", "onnxruntime-gpu"}


def test_a_wheel_further_down_the_path_is_shadowed(environment: Environment) -> None:
    environment(first=("onnxruntime-webgpu",), second=("onnxruntime",))
    assert installed_wheels() == {"onnxruntime-webgpu": "1.30.0"}


def test_a_module_that_no_wheel_brought_hides_none(environment: Environment) -> None:
    environment(first=(), second=("onnxruntime",))
    assert installed_wheels() == {"onnxruntime": "1.30.0"}
