"""ONNX Runtime as this package uses it: the only place that meets its exceptions.

`EXCEPTIONS` maps every exception class that ONNX Runtime exports, once for loading and once for
running; a test fails when a release adds a class that is not here. `ValueError` and
`RuntimeError` are mapped too, since its Python layer raises them bare. `MemoryError` passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import (
    CausalAttnError,
    EngineError,
    InputError,
    MissingDependencyError,
    PackageError,
    UsageError,
)
from causal_attn.machine.provider import Provider
from causal_attn.machine.wheels import installed_wheels
from causal_attn.runtime.cancellation import CURRENT, stopped_by

# Read when ONNX Runtime is imported: without it, 1.32 makes a device id in ~/.cache/Microsoft and
# sends events. Whoever has set it keeps what they set.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime
    from onnxruntime import InferenceSession, IOBinding, OrtValue

    _state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    if not TYPE_CHECKING:
        from onnxruntime import RunOptions, SessionOptions
except ImportError as error:
    # A folder that lost its files to the uninstall of a second wheel still imports, as an empty
    # namespace: the names above are then what is missing.
    _absent = not installed_wheels()
    raise MissingDependencyError(
        "`causal_attn.runtime` needs ONNX Runtime, "
        + ("which is not installed. " if _absent else f"which does not import: {error}. ")
        + "Install it with: "
        + (
            "pip install 'causal-attn[cpu]'"
            if _absent
            else f"pip uninstall -y {' '.join(installed_wheels())} && "
            "pip install 'causal-attn[cpu]'"
        ),
        name="onnxruntime",
    ) from error

if TYPE_CHECKING:
    # They come from a compiled module that type checkers do not see into.
    class RunOptions:
        """``onnxruntime.RunOptions``, as far as it is used here."""

        terminate: bool

    class SessionOptions:
        """``onnxruntime.SessionOptions``, as far as it is used here."""

        intra_op_num_threads: int
        log_severity_level: int

        def add_session_config_entry(self, key: str, value: str) -> None: ...
        def get_session_config_entry(self, key: str) -> str: ...
        def add_external_initializers_from_files_in_memory(
            self, names: Sequence[str], files: Sequence[bytearray], sizes: Sequence[int]
        ) -> None: ...


__all__ = [
    "EXCEPTIONS",
    "InferenceSession",
    "OrtValue",
    "SessionOptions",
    "add_files_in_memory",
    "available_names",
    "installed_version",
    "new_buffer",
    "open_engine",
    "preload_libraries",
    "run_bound",
    "run_engine",
    "run_shared",
    "share",
    "switch_telemetry_off",
    "value_of",
]


class _Mapped(NamedTuple):
    loading: type[CausalAttnError]
    running: type[CausalAttnError]


EXCEPTIONS: Mapping[str, _Mapped] = {
    "DeviceReset": _Mapped(EngineError, EngineError),
    "EPFail": _Mapped(EngineError, EngineError),
    "EngineError": _Mapped(EngineError, EngineError),
    "Fail": _Mapped(EngineError, EngineError),
    "InvalidArgument": _Mapped(PackageError, InputError),
    "InvalidGraph": _Mapped(PackageError, EngineError),
    "InvalidProtobuf": _Mapped(PackageError, EngineError),
    "ModelLoadCanceled": _Mapped(EngineError, EngineError),
    "ModelLoaded": _Mapped(EngineError, EngineError),
    "ModelRequiresCompilation": _Mapped(PackageError, EngineError),
    "NoModel": _Mapped(PackageError, EngineError),
    "NoSuchFile": _Mapped(PackageError, EngineError),
    "NotFound": _Mapped(PackageError, EngineError),
    "NotImplemented": _Mapped(EngineError, EngineError),
    "RuntimeException": _Mapped(EngineError, EngineError),
}
"""Name of ONNX Runtime's exception class -> what it becomes while loading and while running."""

_BARE: Mapping[type[Exception], _Mapped] = {
    ValueError: _Mapped(UsageError, InputError),
    RuntimeError: _Mapped(EngineError, EngineError),
}

# Classes come and go between releases: 1.24 has no DeviceReset.
_BY_CLASS: dict[type[Exception], _Mapped] = {
    getattr(_state, name): mapped for name, mapped in EXCEPTIONS.items() if hasattr(_state, name)
} | dict(_BARE)

_RAISED = tuple(_BY_CLASS)

# What a tensor's own side of DLPack raises comes through as well.
_NOT_SHARED: tuple[type[Exception], ...] = (*_BY_CLASS, TypeError, BufferError)

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
# "/onnxruntime_src/onnxruntime/core/x.h:46 void f(int) axis was false. Why": a place in the source
# of ONNX Runtime, of no use to a caller.
_SOURCE = re.compile(r"/\S+\.(?:cc|cpp|h):\d+ ")


def installed_version() -> str:
    """Of ONNX Runtime, ``1.32.0``."""
    version: str = onnxruntime.__version__
    return version


@cache
def switch_telemetry_off() -> None:
    """Have ONNX Runtime send no events, where its build can; once in a process.

    The environment variable is too late where ONNX Runtime was imported before; this is not. A
    person who has set ``ORT_DISABLE_TELEMETRY=0`` has asked for events.
    """
    disable = getattr(onnxruntime, "disable_telemetry_events", None)
    if disable is not None and os.environ.get("ORT_DISABLE_TELEMETRY") != "0":
        disable()


def available_names() -> tuple[str, ...]:
    """ONNX Runtime's names of the providers in the installed wheel, by its own preference."""
    return tuple(onnxruntime.get_available_providers())


def preload_libraries() -> str:
    """Load the CUDA and cuDNN libraries that pip installed; returns what could not be loaded.

    ONNX Runtime finds them by itself only where the linker's path has them.
    """
    import contextlib
    import io

    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return ""
    # It reports by printing, and a command that writes JSON owns stdout.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            preload()
        except _RAISED as error:
            return f"{printed.getvalue()}{error}".strip()
    return printed.getvalue().strip()


def add_files_in_memory(options: SessionOptions, files: Mapping[str, bytearray]) -> None:
    """Have initializers of the main graph read from `files`, by location, instead of from disk.

    ONNX Runtime keeps pointers: `files` must live until the session is made, and `options` must
    make no other.

    Raises:
        EngineError: It refuses them.
    """
    try:
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(file) for file in files.values()]
        )
    except _RAISED as error:
        raise _translated(error, EngineError, "ONNX Runtime could not take weights") from error


def open_engine(
    model: bytes,
    provider: Provider,
    options: SessionOptions,
    provider_options: Mapping[str, str],
    *,
    name: object,
) -> InferenceSession:
    """A session of `model` on `provider` and, where ONNX Runtime adds it, the CPU.

    Args:
        model: An ONNX file.
        provider: The only one that is asked for.
        options: Of the session.
        provider_options: Of the provider.
        name: What messages call the model.

    Raises:
        PackageError: It is not a model that ONNX Runtime can load.
        UsageError: ONNX Runtime's Python layer refuses an option.
        EngineError: Anything else that it raised.
    """
    try:
        # Without enable_fallback=0 a provider that fails is replaced by the CPU, with a print.
        engine = InferenceSession(
            model,
            options,
            providers=[provider.ort_name],
            provider_options=[dict(provider_options)],
            enable_fallback=0,
        )
    except _RAISED as error:
        raise _translated(
            error,
            _BY_CLASS[_known_class(error)].loading,
            f"ONNX Runtime {onnxruntime.__version__} could not load {name} on {provider}",
        ) from error
    # Kept by ONNX Runtime's Python layer for as long as the session, to make it anew on other
    # providers, which is not done here: weights would lie in memory twice.
    engine._model_bytes = None
    return engine


def run_engine(
    engine: InferenceSession, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    """The values of `outputs`, in that order.

    Raises:
        InputError: ONNX Runtime refuses a feed.
        StoppedError: A `Cancellation` ended the run.
        EngineError: Anything else that it raised.
    """
    try:
        # Not `engine.run`, which checks names once more: 1.4 us of the 20 that a short call takes.
        bare = getattr(engine, "_sess", engine)
        # ONNX Runtime's type also has the sequences and maps that a contract cannot name.
        arrays: Any
        if not (cancellations := CURRENT.get()):
            arrays = bare.run(outputs, feeds, None)
        else:
            options = RunOptions()
            with stopped_by(cancellations, options):
                arrays = bare.run(outputs, feeds, options)
    except _RAISED as error:
        raise _running(error) from error
    return cast("list[NDArray[Any]]", arrays)


def run_bound(engine: InferenceSession, binding: IOBinding) -> None:
    """Run on what is bound; on a device, return when it has finished.

    Raises:
        InputError: ONNX Runtime refuses what is bound.
        StoppedError: A `Cancellation` ended the run; what is bound for outputs means nothing.
        EngineError: Anything else that it raised.
    """
    try:
        _run_binding(engine, binding)
        binding.synchronize_outputs()
    except _RAISED as error:
        raise _running(error) from error


def _run_binding(engine: InferenceSession, binding: IOBinding) -> None:
    if not (cancellations := CURRENT.get()):
        engine.run_with_iobinding(binding)
        return
    options = RunOptions()
    with stopped_by(cancellations, options):
        engine.run_with_iobinding(binding, options)


def new_buffer(shape: Sequence[int], dtype: np.dtype[Any], provider: Provider) -> OrtValue:
    """Memory of its own, where `provider` runs, with unspecified content.

    Raises:
        EngineError: There is no room for it.
    """
    device = provider.memory
    try:
        if device == "cpu" and dtype.kind in "biuf":
            # numpy asks Linux for large pages, ONNX Runtime does not: a decode step over a cache
            # of 8,192 tokens is 1.25 times as fast on them.
            return OrtValue.ortvalue_from_numpy(np.empty(shape, dtype))
        return OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, device, 0)
    except _RAISED as error:
        raise _translated(
            error, EngineError, f"No buffer of {list(shape)} on {provider}"
        ) from error
    except MemoryError:
        raise EngineError(f"No memory for a buffer of {dtype}{list(shape)}.") from None


def value_of(array: NDArray[Any]) -> Any:
    """An ``onnxruntime.OrtValue`` over the memory of `array`, C-contiguous, on the host.

    It holds the array. Unlike `share` it takes what numpy alone has, and older ONNX Runtimes too.

    Raises:
        EngineError: ONNX Runtime does not take it.
    """
    try:
        return OrtValue.ortvalue_from_numpy(array)
    except _RAISED as error:
        raise _translated(error, EngineError, "ONNX Runtime could not take an array") from error


def _running(error: Exception) -> CausalAttnError:
    kind = _BY_CLASS[_known_class(error)].running
    return _translated(error, kind, "ONNX Runtime failed while running the model")


def share(tensor: Any) -> Any:
    """An ``onnxruntime.OrtValue`` over the memory of `tensor`, which has DLPack's protocol.

    `tensor` may be a DLPack capsule, which is a third of the time: it is used up.

    Raises:
        InputError: ONNX Runtime does not take it: it has no such protocol, is not C-contiguous,
            may not be written to, or is of a foreign dtype.
        EngineError: This ONNX Runtime has no DLPack.
    """
    if isinstance(tensor, np.ma.MaskedArray):
        raise InputError(
            "`tensor` must be a plain array, got a MaskedArray, whose mask would be lost. Fill "
            "it: array.filled(value)."
        )
    if not hasattr(onnxruntime.OrtValue, "from_dlpack"):
        raise EngineError(
            "ONNX Runtime must take DLPack to share a tensor, got "
            f"{onnxruntime.__version__}, which does not. Upgrade it, or call the session with "
            "arrays."
        )
    try:
        return onnxruntime.OrtValue.from_dlpack(tensor)
    except _NOT_SHARED as error:
        raise InputError(
            "`tensor` must have DLPack's protocol, a C-contiguous memory that may be written to "
            f"and a dtype of ONNX, got {type(tensor).__name__}: {error}"
        ) from error


def run_shared(
    engine: InferenceSession,
    outputs: Sequence[str],
    values: Mapping[str, Any],
    device: str,
    into: Mapping[str, Any],
) -> list[Any]:
    """Run on `values`, made by `share`; the results are on `device`, ``cpu`` or ``cuda``.

    Outputs that `into` names are written to the memory of its values.

    Raises:
        StoppedError: A `Cancellation` ended the run.
        EngineError: ONNX Runtime refuses a value, or failed.
    """
    try:
        # A new binding each time: one that is kept could not be used by two threads.
        binding = engine.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            if name in into:
                binding.bind_ortvalue_output(name, into[name])
            else:
                binding.bind_output(name, device)
        _run_binding(engine, binding)
        results: list[Any] = binding.get_outputs()
    except _RAISED as error:
        raise _translated(
            error,
            _BY_CLASS[_known_class(error)].running,
            "ONNX Runtime failed while running the model",
        ) from error
    return results


def _known_class(error: Exception) -> type[Exception]:
    return next(kind for kind in type(error).__mro__ if kind in _BY_CLASS)


def _translated(error: Exception, kind: type[CausalAttnError], what: str) -> CausalAttnError:
    text = _SOURCE.sub("", _PREFIX.sub("", str(error))).strip()
    return kind(f"{what}: {text} ({type(error).__name__})")
