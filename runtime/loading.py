"""From a package on disk to a session on the provider that was asked for, or an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from causal_attn.errors import EngineError, PackageError, ProviderError, UsageError
from causal_attn.json_text import shown
from causal_attn.machine.provider import Provider
from causal_attn.runtime.acceptance import Accept, Acceptance
from causal_attn.runtime.agreement import require_agreement, require_runnable
from causal_attn.runtime.handover import hand_over
from causal_attn.runtime.limits import SizeLimits
from causal_attn.runtime.options import build_options, check_provider_options, needed_entries
from causal_attn.runtime.ort import (
    InferenceSession,
    SessionOptions,
    open_engine,
    preload_libraries,
    switch_telemetry_off,
)
from causal_attn.runtime.placement import PlacedNode, read_placement, require_placement
from causal_attn.runtime.providers import require_provider
from causal_attn.runtime.session import Session

if TYPE_CHECKING:
    from causal_attn.package import Variant
    from causal_attn.package.contract import Contract
    from causal_attn.package.hold import HeldModel
    from causal_attn.runtime.observed import Call

__all__ = ["load", "open_variant"]


# The one call that services make: each keyword is an option of theirs, most are left out.
def load(
    path: str | os.PathLike[str],
    provider: str | Provider = Provider.CPU,
    *,
    component: str | None = None,
    variant: str | None = None,
    accept: str | Accept = Accept.CERTIFIED,
    session_options: Mapping[str, str] | SessionOptions | None = None,
    provider_options: Mapping[str, str] | None = None,
    intra_op_threads: int | None = None,
    weights: Literal["copy", "map"] | None = None,
    max_tokens: int | None = None,
    max_bytes: int | None = None,
    digest: str | None = None,
    trust: str | os.PathLike[str] | bytes | None = None,
    on_call: Callable[[Call], object] | None = None,
) -> Session:
    """Load a model package, or one ``.onnx`` file with its contract inside, on one provider.

    Every node runs on that provider, or the call fails: nothing falls back to the CPU. See
    `causal_attn.runtime.placement` for the one exception that the providers of GPUs have.

    The bytes that the certificate is compared with are those that run, whatever happens to the
    files meanwhile. A certificate protects against mix-ups and damage, not against a forger:
    `digest` pins the model that you mean, `trust` asks for a signature. ONNX Runtime's telemetry
    is off, unless the environment has ``ORT_DISABLE_TELEMETRY=0``.

    Args:
        path: The package's folder, or the file.
        provider: Short name, or ONNX Runtime's name. For ``cuda`` and ``tensorrt`` the libraries
            that pip installed are loaded first.
        component: Which model of the package; needed if it has several.
        variant: Which variant; needed if several are for `provider`.
        accept: ``"certified"`` refuses a model without a certificate, with a failed one, or that
            was changed after it was checked; this hashes the whole model.
            ``"unverified"`` takes it as it is.
        session_options: Config entries by ONNX Runtime's keys, see `SWITCHES` in
            `causal_attn.package.session_options`. ``session.intra_op.allow_spinning`` is the one a
            service wants to know: by default idle threads spin for a while, which saves the
            wake-up time of the next call and costs CPU time that neighbours on the machine
            could use; ``"0"`` turns it off. Or a whole ``onnxruntime.SessionOptions``, which
            is used as it is and gets the entries that `load` needs.
        provider_options: ONNX Runtime's options of the provider.
        intra_op_threads: Threads of one call, >= 1. ``None``: ONNX Runtime's choice, one a
            physical core.
        weights: What becomes of external data (``model.onnx.data``). ``"copy"`` reads it into
            memory, up to three times its size while loading and once after: the files may then
            change. ``"map"`` leaves it in the files, which several processes share, and reads
            when it is needed: writing into a file changes the answers of running sessions, and
            cutting it ends the process with SIGBUS. Replace such packages by a rename, as
            everything here does. ``None``: copy up to 1 GiB, map what is larger. The ONNX file
            itself is always copied.
        max_tokens: Most tokens of one call, along the contract's dim of tokens; ``None``: any
            number.
        max_bytes: Most bytes that the inputs and outputs of one call may take together, by the
            dims of the contract; ``None``: any number. A request of 60,000 tokens that is small
            itself may ask for gigabytes of weights. A larger call is refused before anything is
            copied or allocated for it; what kernels need in between is not counted.
        digest: ``"sha256:…"``, the digest that the model must have, as its certificate and
            ``causal-attn inspect`` say it; ``None``: whichever the certificate names.
        trust: An ed25519 public key, the path of a PEM file or its content as bytes: a model that
            it did not sign, as it is now, is refused. See `causal_attn.package.signature`; needs
            the extra ``[sign]``. ``None``: signatures are not looked at.
        on_call: Called after each call with what it took, in the thread that called; see
            `causal_attn.runtime.Call`. ``None`` costs nothing.

    Returns:
        An open session; close it, or use it in a ``with`` statement.

    Raises:
        UsageError: An argument is wrong.
        ProviderError: The provider is unknown, not installed, does not start, or does not run
            every node; the message says what is there and how to get it.
        PackageError: The package cannot be read, is not what it says, or its files changed while
            they were loaded.
        CertificateError: The certificate is missing, failed or of another model; the model has
            another digest than `digest`; or the key in `trust` did not sign it as it is.
        MissingDependencyError: `trust` is given and the extra ``[sign]`` is not installed.
        InputError: The model has tensors of a dtype that numpy does not have.
        EngineError: ONNX Runtime failed.
    """
    wanted, acceptance = require_provider(provider), Acceptance(accept, digest, trust)
    if on_call is not None and not callable(on_call):
        raise UsageError(f"`on_call` must be callable or None, got {shown(on_call)}.")
    chosen, held = _hold(path, wanted, component, variant, weights)
    with held:
        acceptance.require(chosen, held)
        limits = None
        if max_tokens is not None or max_bytes is not None:
            limits = SizeLimits(chosen.contract, max_tokens=max_tokens, max_bytes=max_bytes)
        asked = _Asked(wanted, session_options, provider_options, intra_op_threads)
        return _session(chosen, held, asked, limits, on_call)


def open_variant(
    variant: Variant,
    provider: str | Provider,
    *,
    session_options: Mapping[str, str] | SessionOptions | None = None,
    provider_options: Mapping[str, str] | None = None,
    intra_op_threads: int | None = None,
    weights: Literal["copy", "map"] | None = None,
) -> Session:
    """A session on a model whose contract is at hand, for those who check it: no certificate.

    Arguments, result and errors are those of `load`.
    """
    wanted = require_provider(provider)
    with _hold_model(variant.model, weights) as held:
        asked = _Asked(wanted, session_options, provider_options, intra_op_threads)
        return _session(variant, held, asked)


_NO_ADAPTER = "Failed to get a WebGPU adapter"
"""What ONNX Runtime says without a device."""


class _Asked(NamedTuple):
    """What the caller of `load` asks of ONNX Runtime."""

    provider: Provider
    session_options: Mapping[str, str] | SessionOptions | None
    provider_options: Mapping[str, str] | None
    intra_op_threads: int | None


def _session(
    variant: Variant,
    held: HeldModel,
    asked: _Asked,
    limits: SizeLimits | None = None,
    on_call: Callable[[Call], object] | None = None,
) -> Session:
    switch_telemetry_off()
    require_runnable(variant.contract)
    engine, placement = _placed_engine(variant, held, asked)
    held.require_unchanged()
    require_agreement(variant, engine)
    make: Callable[..., Session] = Session
    if on_call is not None:
        from causal_attn.runtime.observed import ObservedSession

        make = partial(ObservedSession, on_call=on_call)
    return make(
        engine,
        contract=variant.contract,
        certificate=variant.certificate,
        provider=asked.provider,
        placement=placement,
        limits=limits,
    )


# Reading packages takes hashing, JSON and pathlib: half of what importing this module would cost,
# for a service that may load its model later. So the functions below import it when called.


def _hold(
    path: str | os.PathLike[str],
    provider: Provider,
    component: str | None,
    name: str | None,
    weights: str | None,
) -> tuple[Variant, HeldModel]:
    """The variant at `path`, and its model, read once."""
    # bytes and descriptors are paths to the system, and not to what reads packages.
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UsageError(
            f"`path` must be a str or a pathlib.Path, got {shown(path)}. Decode bytes with "
            "os.fsdecode."
        )
    from causal_attn.package import read_package
    from causal_attn.package.read import lone_variant

    if os.path.isdir(path):
        variant = read_package(path).select(provider, component, name)
        return variant, _hold_model(variant.model, weights)
    if not os.path.exists(path):
        raise PackageError(
            f"`path` must be a package or an .onnx file, got {os.fspath(path)}: not there."
        )
    if component is not None or name is not None:
        raise UsageError(
            f"`component` and `variant` must be None for a lone model, got {component!r} and "
            f"{name!r}. They choose inside a package."
        )
    held = _hold_model(path, weights)
    try:
        return lone_variant(held), held
    except BaseException:
        held.close()
        raise


def _hold_model(path: str | os.PathLike[str], weights: str | None) -> HeldModel:
    from causal_attn.package.hold import hold_model

    held = hold_model(path, weights)
    try:
        held.settle()
    except BaseException:
        held.close()
        raise
    return held


def _has_half(contract: Contract) -> bool:
    return any(tensor.dtype == "float16" for tensor in (*contract.inputs, *contract.outputs))


def _placed_engine(
    variant: Variant, held: HeldModel, asked: _Asked
) -> tuple[InferenceSession, tuple[PlacedNode, ...]]:
    provider = asked.provider
    provider_options = check_provider_options(provider, asked.provider_options)
    not_loaded = _preload() if provider in (Provider.CUDA, Provider.TENSORRT) else ""
    # ONNX Runtime refuses to add the CPU by name and to forbid it at once, and beside a GPU it
    # puts arithmetic on shapes on the CPU itself: there the record alone decides.
    strict = provider.device != "gpu" and provider is not Provider.CPU
    options = build_options(
        from_package=variant.session_options,
        from_caller=asked.session_options,
        intra_op_threads=asked.intra_op_threads,
        strict=strict,
        needed=needed_entries(provider, half=_has_half(variant.contract)),
    )
    try:
        engine = open_engine(
            hand_over(held, options, shared=options is asked.session_options),
            provider,
            options,
            provider_options,
            name=variant.model,
        )
    except EngineError as error:
        if provider is Provider.WEBGPU and _NO_ADAPTER in str(error):
            raise ProviderError(
                "`provider` must have a device, got 'webgpu', for which there is none: "
                "`causal-attn doctor` says how to get one."
            ) from error
        if strict:
            _name_the_nodes(variant, held, provider, provider_options)
        raise
    if provider.ort_name not in engine.get_providers():
        raise ProviderError(
            f"`provider` must start, got {str(provider)!r}, which ONNX Runtime replaced by "
            f"{engine.get_providers()}: its device or libraries are missing. {not_loaded}".strip()
        )
    placement = read_placement(engine)
    require_placement(placement, provider)
    return engine, placement


def _name_the_nodes(
    variant: Variant, held: HeldModel, provider: Provider, provider_options: Mapping[str, str]
) -> None:
    """Refuse a model that a strict session refused by the nodes at fault, if that is why.

    The strict refusal says only that there are some; the record of a session that may fall back
    has them. That session is thrown away.
    """
    options = build_options(
        from_package=variant.session_options,
        from_caller=None,
        intra_op_threads=None,
        strict=False,
        needed=needed_entries(provider, half=False),
    )
    model = hand_over(held, options, shared=False)
    engine = open_engine(model, provider, options, provider_options, name=variant.model)
    require_placement(read_placement(engine), provider)


@cache
def _preload() -> str:
    return preload_libraries()
