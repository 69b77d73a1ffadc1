"""`verify`: is this ONNX file causal, and does it say what it should? No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from causal_attn.attention.numpy_reference import run_spec
from causal_attn.errors import (
    CausalAttnError,
    EngineError,
    PackageError,
    ProviderError,
    UsageError,
)
from causal_attn.machine.provider import Provider
from causal_attn.package import Variant, open_model, read_package
from causal_attn.package.certificate import Certificate, Check
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CONTRACT_KEY, model_digest, read_metadata
from causal_attn.runtime import Session, available_providers
from causal_attn.runtime.loading import open_variant
from causal_attn.verify.checks.decode import check_decode
from causal_attn.verify.checks.file import (
    Proved,
    check_inputs_are_read,
    check_proof,
    made_up_operators,
    read_model,
)
from causal_attn.verify.checks.padding import check_padding
from causal_attn.verify.checks.parity import Run, check_parity, widened
from causal_attn.verify.checks.placement import check_placement, count_placement
from causal_attn.verify.checks.sequence import certify, run_checks
from causal_attn.verify.feeds.feeder import LENGTHS, Feeds
from causal_attn.verify.interface.discover import Interface, discover, from_contract, with_outputs
from causal_attn.verify.interface.runnable import Runnable, find_runnable
from causal_attn.verify.oracle.float64 import GraphRun
from causal_attn.verify.report import Report, VariantReport

__all__ = ["FOREIGN_LENGTHS", "verify"]

FOREIGN_LENGTHS = (1, 2, 5, 13, 33, 65)
"""Tokens that a model of others is run at: its float64 oracle is slow."""


def verify(
    path: str | Path,
    *,
    provider: str | Provider | None = None,
    lengths: Sequence[int] | None = None,
    tokens_axis: Mapping[str, int] | None = None,
    outputs: Iterable[str] | None = None,
    on_check: Callable[[str], None] = lambda _: None,
) -> Report:
    """Prove, probe and compare a package or any ONNX file on this machine.

    The influence proof follows every position through the graph; the probes perturb the future on
    the real provider; parity holds results against the reference in float64 where the contract
    has a spec, and against the graph itself in float64 otherwise
    (`causal_attn.verify.oracle.float64`).

    Args:
        path: A package, or an ``.onnx`` file of ours or of others.
        provider: Where to run; default: every variant whose provider is installed, and the CPU
            for a lone file.
        lengths: Tokens to run at; default `LENGTHS`, or `FOREIGN_LENGTHS` without a contract.
        tokens_axis: A model of others: which inputs hold tokens, and on which axis, where names
            do not tell.
        outputs: A model of others: which outputs to examine.
        on_check: Called with a few words before each check.

    Raises:
        PackageError: `path` cannot be read, or its files contradict each other.
        UsageError: The inputs of a model of others cannot be told from their names.
        ProviderError: `provider` is not installed, or no variant can run here.
    """
    path = Path(path)
    available = available_providers()
    wanted = None if provider is None else Provider.parse(provider)
    reports, skipped = [], {}
    for variant, interface in _targets(path, tokens_axis, list(outputs) if outputs else None):
        where = variant.provider or wanted or Provider.CPU
        if wanted is not None and where is not wanted:
            continue
        if where not in available:
            skipped[variant.name] = f"{where} is not installed here"
            continue
        reports.append(_verify(variant, interface, where, lengths, on_check))
    if not reports:
        raise ProviderError(
            f"`provider` must be one that a variant of {path.name} is made for and that is "
            f"installed, {[str(p) for p in available]}, got {str(wanted)!r}; {skipped}."
        )
    return Report(path=path, variants=tuple(reports), skipped=skipped)


def _targets(
    path: Path, tokens_axis: Mapping[str, int] | None, outputs: list[str] | None
) -> Iterable[tuple[Variant, Interface]]:
    ours = path.is_dir() or CONTRACT_KEY in read_metadata(path)
    if ours and (tokens_axis or outputs):
        raise UsageError(
            "`tokens_axis` and `outputs` must be left out for a model with a contract, which says "
            "so itself."
        )
    if not ours:
        model = read_model(path)
        interface = discover(model, path, tokens_axis=tokens_axis, outputs=outputs)
        yield _foreign(path, interface.feeder.contract), interface
        return
    for variant in read_package(path).variants if path.is_dir() else (open_model(path),):
        yield variant, from_contract(variant.contract, read_model(variant.model))


def _foreign(path: Path, contract: Contract) -> Variant:
    return Variant(
        name=path.stem, component="", ep="", provider=None, device="", directory=path.parent,
        model=path, contract=contract, certificate=None,
    )  # fmt: skip


def _verify(
    variant: Variant,
    interface: Interface,
    provider: Provider,
    lengths: Sequence[int] | None,
    on_check: Callable[[str], None],
) -> VariantReport:
    checks: list[Check] = []
    not_checked: list[str] = []
    model = read_model(variant.model)
    placement: dict[str, int] = {}
    with ExitStack() as stack:
        try:
            # TF32 rounds float32 products to 10 bits, which no budget for float32 allows.
            exact = {"use_tf32": "0"} if provider is Provider.CUDA else None
            session = stack.enter_context(open_variant(variant, provider, provider_options=exact))
        except (EngineError, PackageError) as error:
            # An operator that nobody knows is no fault of the file; any other fault is.
            if isinstance(error, PackageError) and not made_up_operators(model):
                raise
            checks.append(_not_run(interface, provider, f"ONNX Runtime does not load it: {error}"))
        else:
            on_check(f"sizes on {provider}")
            placement = count_placement(session)
            checks.append(check_placement(session))
            ran = _sizes(session, variant, interface, lengths)
            not_checked += ran.notes
            interface = ran.interface
            if not ran.lengths:
                detail = f"no input that was tried runs: {ran.reason}"
                checks.append(_not_run(interface, provider, detail))
            else:
                interface = _found_by_running(session, interface)
                dynamic, reasons = _dynamic(session, variant, interface, ran.lengths, on_check)
                checks += dynamic
                not_checked += reasons
    on_check("influence proof")
    proved = check_proof(model, interface, variant.directory)
    checks[:0] = [check_inputs_are_read(model.graph), proved.check]
    return VariantReport(
        variant=variant.name,
        provider=provider,
        certificate=_certificate(variant, checks, proved),
        contract=interface.feeder.contract,
        visibility=proved.proof.outputs,
        leak=proved.proof.leak,
        placement=placement,
        not_checked=(*interface.notes, *_rowless(interface), *not_checked),
    )


def _rowless(interface: Interface) -> list[str]:
    examined = interface.feeder.examined
    return [
        f"output {tensor.name!r}: it has no token axis"
        for tensor in interface.feeder.contract.outputs
        if tensor.name not in interface.outputs and (examined is None or tensor.name in examined)
    ]


def _not_run(interface: Interface, provider: Provider, detail: str) -> Check:
    """Nothing was run, which decides nothing.

    Raises:
        UsageError: And without running it, no output is known to have a token axis.
    """
    if not interface.outputs:
        raise UsageError(
            "`outputs` must have one with a token axis, got none by name, and running the model "
            f"to find it failed: {detail}"
        )
    return Check(name="runs", passed=None, detail=detail, provider=str(provider))


def _sizes(
    session: Session, variant: Variant, interface: Interface, lengths: Sequence[int] | None
) -> Runnable:
    """A contract is a promise to run; a model of others is tried first."""
    if variant.contract.form != "foreign":
        return Runnable(interface=interface, lengths=tuple(lengths or LENGTHS))
    return find_runnable(session, interface, lengths or FOREIGN_LENGTHS)


def _dynamic(
    session: Session,
    variant: Variant,
    interface: Interface,
    lengths: Sequence[int],
    on_check: Callable[[str], None],
) -> tuple[list[Check], list[str]]:
    """Everything that runs the graph, and what could not be."""
    oracle, baseline, reason = _runs(variant, interface, lengths)
    checks = list(
        run_checks(session, interface.feeder, oracle, baseline, lengths=lengths, on_check=on_check)
    )
    for name, check in (("decode", check_decode), ("padding", check_padding)):
        on_check(f"{name} on {session.provider}")
        result = check(session, interface)
        if result is not None:
            checks.append(result)
    reasons = [f"parity: {reason}"] if reason else []
    if session.provider is Provider.CUDA and oracle is not None and baseline is not None:
        reasons.append(_with_tf32(variant, interface, oracle, baseline, lengths))
    return checks, reasons


def _with_tf32(
    variant: Variant, interface: Interface, oracle: Run, baseline: Run, lengths: Sequence[int]
) -> str:
    """What TF32, ONNX Runtime's default on CUDA, adds to the error: stated, not judged."""
    with open_variant(variant, Provider.CUDA, provider_options={"use_tf32": "1"}) as session:
        check = check_parity(session, interface.feeder, oracle, baseline, lengths=lengths)
    return f"TF32 was off; with use_tf32=1, ONNX Runtime's default: {check.detail}"


def _certificate(variant: Variant, checks: Sequence[Check], proved: Proved) -> Certificate:
    return certify(
        model_digest(variant.model),
        checks,
        proved=proved.proof.verdict,
        score_bound=proved.proof.score_bound,
    )


def _found_by_running(session: Session, interface: Interface) -> Interface:
    """Token axes of outputs whose dims carry no name: those that grow with the tokens."""
    if not interface.unplaced or interface.fixed_tokens is not None:
        return interface
    rng = np.random.default_rng(0)
    shapes = []
    for sizes in interface.feeder.cases((5, 7)):
        sizes = {**sizes, **{name: 2 for name in sizes if name not in ("tokens",)}}
        results = session.run(interface.feeder.make({**sizes, **interface.feeder.pinned}, rng))
        shapes.append({name: results[name].shape for name in interface.unplaced})
    axes = {}
    for name, short in shapes[0].items():
        grown = [axis for axis, size in enumerate(short) if shapes[1][name][axis] == size + 2]
        if grown:
            axes[name] = grown[0]
    if not axes and not interface.outputs:
        raise UsageError(
            "`outputs` must have one that grows with the tokens, got none: "
            f"{[tensor.name for tensor in session.contract.outputs]}. A graph that returns one "
            "row for all tokens cannot be causal or not."
        )
    return with_outputs(interface, axes)


def _runs(
    variant: Variant, interface: Interface, lengths: Sequence[int]
) -> tuple[Run | None, Run | None, str]:
    """Oracle and baseline, or the reason why there are none."""
    spec = variant.contract.spec
    if spec is not None:

        def run(feeds: Feeds) -> Feeds:
            return run_spec(spec, feeds)

        return run, run, ""
    try:
        wide = GraphRun(variant.model, wide=True)
        plain = GraphRun(variant.model, wide=False)
        (sizes,) = interface.feeder.cases((min(lengths),))
        feeds = interface.feeder.make(sizes, np.random.default_rng(0))
        plain(feeds)
        wide(widened(feeds))
    except CausalAttnError as error:
        return None, None, str(error)
    return wide, plain, ""
