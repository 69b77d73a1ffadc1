"""Session options: what the caller and the package set, and what `load` sets itself.

Which ones a mapping may hold is said in `causal_attn.package.session_options`.
"""

from __future__ import annotations

from collections.abc import Mapping

from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package.session_options import SWITCHES, refused_options
from causal_attn.runtime.handover import FORMAT_OPTION
from causal_attn.runtime.ort import SessionOptions
from causal_attn.runtime.placement import RECORD_OPTION

__all__ = ["STRICT_OPTION", "build_options", "check_provider_options", "needed_entries"]

STRICT_OPTION = "session.disable_cpu_ep_fallback"

# ONNX Runtime 1.32.0 ends the process while it opens a model in which a transposed tensor meets
# weights and a bias in float16, as in torch's MultiheadAttention: laying memory out for
# convolutions, it reads what an earlier optimization has put together.
_IN_HALF = {"optimization.disable_specified_optimizers": "NchwcTransformer"}
# Where WebGPU lays memory out for convolutions, ONNX Runtime 1.27 records of its nodes only those
# that it takes after that.
_ON_WEBGPU = {"ep.webgpuexecutionprovider.preferredLayout": "NCHW"}
_WITHOUT_OPTIONS = {
    Provider.CPU: "which takes none",
    Provider.WEBGPU: "which ignores them: it reads ep.webgpuexecutionprovider entries",
}
_MOST_THREADS = 4096
_FATAL = 4
_UNSET = -1


def build_options(
    *,
    from_package: Mapping[str, str],
    from_caller: Mapping[str, str] | SessionOptions | None,
    intra_op_threads: int | None,
    strict: bool,
    needed: Mapping[str, str],
) -> SessionOptions:
    """The options of one session.

    Args:
        from_package: Config entries of the variant, checked when it was read; those of the caller
            override them.
        from_caller: See `causal_attn.runtime.load`.
        intra_op_threads: ``None`` leaves ONNX Runtime's choice, the physical cores.
        strict: ONNX Runtime itself refuses to leave a node to the CPU.
        needed: What `needed_entries` says.

    Raises:
        UsageError: An argument of the caller is wrong, or contradicts what `load` must set.
    """
    if isinstance(from_caller, SessionOptions):
        options = _taken(from_caller, intra_op_threads)
        entries = dict(from_package)
    else:
        options = SessionOptions()
        entries = {**from_package, **_checked(from_caller)}
        if intra_op_threads is not None:
            options.intra_op_num_threads = _positive(intra_op_threads)
    if options.log_severity_level == _UNSET:
        # Whatever it would log about a failure is in the exception, and stderr is the caller's.
        options.log_severity_level = _FATAL
    entries |= {
        FORMAT_OPTION: "ONNX",
        RECORD_OPTION: "1",
        STRICT_OPTION: "1" if strict else "0",
        **needed,
    }
    for key, value in entries.items():
        _set(options, key, value)
    return options


def needed_entries(provider: Provider, *, half: bool) -> Mapping[str, str]:
    """Config entries without which `provider` runs wrongly, or says too little of itself.

    Args:
        provider: That runs the model.
        half: The model has float16.
    """
    if provider is Provider.WEBGPU:
        return _ON_WEBGPU
    return _IN_HALF if half and provider is Provider.CPU else {}


def check_provider_options(
    provider: Provider, options: Mapping[str, str] | None
) -> Mapping[str, str]:
    """`options` as strings, or nothing.

    Raises:
        UsageError: They are not strings, or `provider` would ignore them: the CPU takes none, and
            WebGPU reads its own from the config entries of the session.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(
        isinstance(item, str) for pair in options.items() for item in pair
    ):
        raise UsageError(
            f"`provider_options` must be a mapping of strings to strings, got {options!r}."
        )
    if options and provider in _WITHOUT_OPTIONS:
        raise UsageError(
            f"`provider_options` must be empty for {provider}, {_WITHOUT_OPTIONS[provider]}, got "
            f"{dict(options)}."
        )
    return options


def _checked(entries: Mapping[str, str] | None) -> Mapping[str, str]:
    if entries is None:
        return {}
    if not isinstance(entries, Mapping):
        raise UsageError(
            "`session_options` must be a mapping or an onnxruntime.SessionOptions, got "
            f"{type(entries).__name__}."
        )
    if refused := refused_options(entries):
        raise UsageError(
            f"`session_options` must have keys out of {sorted(SWITCHES)} and values '0' or '1', "
            f"got {refused}. Give anything else as an onnxruntime.SessionOptions: ONNX Runtime "
            "ignores a key that it does not know."
        )
    return entries


def _set(options: SessionOptions, key: str, value: str) -> None:
    # ONNX Runtime overwrites an entry with a line on stderr, and gives no way to ask whether there
    # is one but to ask for it.
    try:
        present = options.get_session_config_entry(key)
    except RuntimeError:
        options.add_session_config_entry(key, value)
        return
    if present != value:
        raise UsageError(
            f"`session_options` must leave {key} to `load`, which needs {value!r} for this "
            f"provider and package, got {present!r}. Make one SessionOptions for each."
        )


def _taken(options: SessionOptions, intra_op_threads: int | None) -> SessionOptions:
    if intra_op_threads is not None:
        raise UsageError(
            f"`intra_op_threads` must be None beside a SessionOptions, got {intra_op_threads!r}. "
            "Set intra_op_num_threads on it."
        )
    # Providers registered on the options would compete with the one that was asked for.
    if getattr(options, "has_providers", bool)():
        raise UsageError(
            "`session_options` must register no providers, got some. Name one in `provider`."
        )
    return options


def _positive(threads: int) -> int:
    if (
        not isinstance(threads, int)
        or isinstance(threads, bool)
        or not 1 <= threads <= _MOST_THREADS
    ):
        raise UsageError(
            "`intra_op_threads` must be an integer >= 1 or None, and at most "
            f"{_MOST_THREADS}, got {threads!r}."
        )
    return threads
