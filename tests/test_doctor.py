"""The doctor names what is missing and the command that mends it, in any environment."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from causal_attn import doctor
from causal_attn.doctor import Task, diagnose
from causal_attn.machine.provider import Provider
from causal_attn.machine.wheels import ORT_WHEELS

EVERYTHING = {
    name: "9.9.0" for name in doctor._REPORTED if not name.startswith(("onnxruntime", "ort-"))
}

Environment = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Pretend that `versions` are installed, with `providers`, beside a `device` or not.

    `adapters` are what WebGPU could run on.
    """

    def pretend(
        versions: dict[str, str],
        providers: tuple[Provider, ...] = (Provider.CPU,),
        *,
        trouble: str = "",
        device: bool = False,
        adapters: tuple[str, ...] = (),
    ) -> None:
        wheels = {name: version for name, version in versions.items() if name in ORT_WHEELS}
        monkeypatch.setattr(doctor, "version_of", versions.get)
        monkeypatch.setattr(doctor, "installed_wheels", lambda: wheels)
        monkeypatch.setattr(doctor, "webgpu_adapters", lambda: adapters)
        monkeypatch.setattr(doctor, "_providers", lambda: (providers, trouble))
        monkeypatch.setattr(doctor, "_nvidia_device", lambda: device)

    return pretend


def commands() -> dict[Task, str]:
    return {problem.task: problem.command for problem in diagnose().problems}


def test_a_whole_environment_has_no_problem(environment: Environment) -> None:
    environment(EVERYTHING | {"onnxruntime": "1.32.0"})
    diagnosis = diagnose()
    assert diagnosis.problems == ()
    assert diagnosis.can_run
    assert diagnosis.providers == ("cpu",)
    assert diagnosis.versions["onnxruntime"] == "1.32.0"
    assert "onnxruntime-gpu" not in diagnosis.versions


def test_a_missing_onnx_runtime(environment: Environment) -> None:
    environment(EVERYTHING, (), trouble="No module named 'onnxruntime'")
    assert commands() == {Task.RUN: "pip install 'causal-attn[cpu]'"}
    assert not diagnose().can_run


def test_an_onnx_runtime_that_pip_does_not_know(environment: Environment) -> None:
    environment(EVERYTHING, (Provider.CPU,))
    assert commands() == {}


def test_two_wheels(environment: Environment) -> None:
    both = EVERYTHING | {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.0"}
    environment(both)
    assert commands() == {
        Task.RUN: "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'causal-attn[cpu]'"
    }
    (problem,) = diagnose().problems
    assert problem.what.startswith("onnxruntime and onnxruntime-gpu are both installed")
    environment(both, device=True)
    assert commands() == {
        Task.RUN: "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'causal-attn[cuda]'"
    }


def test_a_device_without_its_provider(environment: Environment) -> None:
    environment(EVERYTHING | {"onnxruntime": "1.32.0"}, device=True)
    assert commands() == {
        Task.CUDA: "pip uninstall -y onnxruntime && pip install 'causal-attn[cuda]'"
    }
    assert diagnose().can_run
    environment(
        EVERYTHING | {"onnxruntime-gpu": "1.31.0"}, (Provider.CUDA, Provider.CPU), device=True
    )
    assert commands() == {}


def test_webgpu_without_a_device(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    versions = EVERYTHING | {"onnxruntime-webgpu": "1.27.0"}
    environment(versions, (Provider.WEBGPU, Provider.CPU))
    (problem,) = diagnose().problems
    assert problem.task is Task.WEBGPU
    assert "export VK_ICD_FILENAMES=" in problem.command
    assert diagnose().can_run
    environment(versions, (Provider.WEBGPU, Provider.CPU), adapters=("A card",))
    assert commands() == {}
    assert diagnose().to_dict()["adapters"] == ["A card"]
    environment(EVERYTHING | {"onnxruntime": "1.32.0"})
    assert commands() == {}


def test_an_old_onnx_runtime(environment: Environment) -> None:
    environment(EVERYTHING | {"onnxruntime": "1.9.2"})
    assert commands() == {Task.RUN: "pip install --upgrade 'onnxruntime>=1.24'"}
    environment(EVERYTHING | {"onnxruntime": "1.24.1"})
    assert commands() == {}


def test_a_broken_onnx_runtime(environment: Environment) -> None:
    environment(EVERYTHING | {"onnxruntime": "1.32.0"}, (), trouble="libx.so is missing")
    (problem,) = diagnose().problems
    assert problem.command == "pip install --force-reinstall --no-deps onnxruntime"
    assert "does not import: libx.so is missing." in problem.what


def test_missing_extras(environment: Environment) -> None:
    environment({"causal-attn": "0.1.0", "numpy": "2.0.0", "onnxruntime": "1.32.0"})
    assert commands() == {
        Task.VERIFY: "pip install 'causal-attn[verify]'",
        Task.EXPORT: "pip install 'causal-attn[export]'",
    }
    assert diagnose().problems[0].what == "onnx, onnx-ir, matplotlib are not installed."
    assert diagnose().can_run


def test_this_environment_as_json() -> None:
    diagnosis = diagnose()
    values = json.loads(json.dumps(diagnosis.to_dict()))
    assert values["can_run"] is diagnosis.can_run
    assert values["python"] == ".".join(map(str, sys.version_info[:3]))
    assert values["versions"]["numpy"]
    assert "cpu" in values["providers"]
    for problem in values["problems"]:
        assert set(problem) == {"task", "what", "command"}
        assert problem["command"].startswith("pip ")


@pytest.mark.parametrize("blocked", ["onnxruntime", "numpy", "torch", "onnx"])
def test_it_works_where_something_does_not_import(blocked: str) -> None:
    source = f"""
        import sys
        sys.modules[{blocked!r}] = None
        from causal_attn.doctor import diagnose
        diagnose().to_dict()
        assert "torch" not in {{name for name, module in sys.modules.items() if module}}
        """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], text=True, capture_output=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
