"""ONNX Runtime's exceptions become ours, all of them, in one place."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from causal_attn.errors import CausalAttnError, EngineError, InputError, PackageError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.runtime import ort as engine_module
from causal_attn.runtime.ort import EXCEPTIONS, SessionOptions, open_engine, run_engine

state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")

EXPORTED = {
    name: kind
    for name, kind in inspect.getmembers(state, inspect.isclass)
    if issubclass(kind, BaseException)
}


def test_every_exception_of_onnx_runtime_is_mapped() -> None:
    assert EXPORTED.keys() >= {"Fail", "InvalidArgument", "InvalidProtobuf", "EPFail"}
    assert EXPORTED.keys() - EXCEPTIONS.keys() == set()


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_an_exception_becomes_ours_while_running_and_loading(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = EXPORTED[name]("[ONNXRuntimeError] : 2 : SOME_CODE : /src/a/b.cc:12 what happened")

    def construct(*_: Any, **__: Any) -> None:
        raise raised

    broken: Any = Raises(raised)
    with pytest.raises(EXCEPTIONS[name].running) as running:
        run_engine(broken, ["y"], {"x": np.zeros(1)})
    monkeypatch.setattr(engine_module, "InferenceSession", construct)
    with pytest.raises(EXCEPTIONS[name].loading, match=r"could not load m\.onnx on cpu") as load:
        open_engine(b"", Provider.CPU, SessionOptions(), {}, name="m.onnx")
    for caught in (running, load):
        assert str(caught.value).endswith(f": what happened ({name})")
        assert caught.value.__cause__ is raised
        assert isinstance(caught.value, CausalAttnError)


@pytest.mark.parametrize(
    ("raised", "kind"), [(ValueError("x"), InputError), (RuntimeError("x"), EngineError)]
)
def test_what_the_python_layer_raises_bare_is_mapped(
    raised: Exception, kind: type[CausalAttnError]
) -> None:
    broken: Any = Raises(raised)
    with pytest.raises(kind):
        run_engine(broken, ["y"], {})


@pytest.mark.parametrize("raised", [MemoryError(), KeyboardInterrupt(), TypeError("ours")])
def test_what_is_not_of_onnx_runtime_passes(raised: BaseException) -> None:
    broken: Any = Raises(raised)
    with pytest.raises(type(raised)):
        run_engine(broken, ["y"], {})


def test_kinds_a_caller_tells_apart() -> None:
    assert EXCEPTIONS["InvalidProtobuf"].loading is PackageError
    assert EXCEPTIONS["NoSuchFile"].loading is PackageError
    assert EXCEPTIONS["InvalidArgument"].running is InputError
    assert EXCEPTIONS["EPFail"].running is EngineError


def test_a_failing_provider_is_not_replaced(
    attention: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default ONNX Runtime prints, makes a CPU session instead, and goes on."""
    import onnxruntime

    attempts = 0

    def fail(*_: Any, **__: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise RuntimeError("no device")

    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", fail)
    with pytest.raises(EngineError, match=r"no device"):
        open_engine(attention.read_bytes(), Provider.CPU, SessionOptions(), {}, name=attention)
    assert attempts == 1
    assert capfd.readouterr().out == ""


def test_a_wrong_config_key_is_an_error(attention: Path) -> None:
    options = SessionOptions()
    with pytest.raises((UsageError, RuntimeError)):
        options.add_session_config_entry("", "1")


def test_preloading_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    monkeypatch.setattr(
        onnxruntime, "preload_dlls", lambda: sys.stdout.write("no libcudnn"), raising=False
    )
    assert engine_module.preload_libraries() == "no libcudnn"
    assert capfd.readouterr().out == ""
    monkeypatch.delattr(onnxruntime, "preload_dlls")
    assert engine_module.preload_libraries() == ""


def test_an_onnx_runtime_without_dlpack_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class OrtValue:
        """As ONNX Runtime 1.24 has it."""

    monkeypatch.setattr(engine_module.onnxruntime, "OrtValue", OrtValue)  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="must take DLPack to share a tensor"):
        engine_module.share(np.zeros(1))
