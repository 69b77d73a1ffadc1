"""`verify`: is this ONNX file causal, and does it say what it should? No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.runtime import Session, available_providers
from causal_attn.verify.checks.all_checks import check_file, run_checks
from causal_attn.verify.checks.declared_dims import check_declared_dims
from causal_attn.verify.checks.other_values import OTHER_VALUES
from causal_attn.verify.checks.padding import PADDING
from causal_attn.verify.checks.parity import check_parity
from causal_attn.verify.checks.placement import count_placement
from causal_attn.verify.checks.trial import Trial, require_lengths
from causal_attn.verify.checks.witness import Witness, find_witness, witness_check
from causal_attn.verify.feeds.feeder import LENGTHS, Feeds
from causal_attn.verify.interface.discover import Interface, with_outputs
from causal_attn.verify.interface.graph_lengths import graph_lengths
from causal_attn.verify.interface.runnable import Runnable, find_reach, find_runnable
from causal_attn.verify.oracle.float64 import GraphRun
from causal_attn.verify.oracle.yardstick import Yardstick, widened
from causal_attn.verify.read_model import made_up_operators
from causal_attn.verify.report import Report, VariantReport
from causal_attn.verify.subject import Subject, read_subjects
from causal_attn.verify.verdict import certify

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

    Returns:
        A report for each variant that could be tried. An error of one variant beside others is a
        report of its own in which nothing is decided; of the only one it is raised.

    Raises:
        PackageError: `path` cannot be read, or its files contradict each other.
        UsageError: The inputs of a model of others cannot be told from their names, or `lengths`
            are none.
        ProviderError: `provider` is not installed, or no variant can run here.
    """
    path = Path(path)
    available = available_providers()
    wanted = None if provider is None else Provider.parse(provider)
    lengths = None if lengths is None else require_lengths(lengths)
    chosen = list(outputs) if outputs else None
    reports: list[VariantReport] = []
    skipped: dict[str, str] = {}
    failed: list[tuple[Subject, Provider, CausalAttnError]] = []
    for subject in read_subjects(path, tokens_axis=tokens_axis, outputs=chosen):
        where = subject.variant.provider or wanted or Provider.CPU
        if wanted is not None and where is not wanted:
            continue
        if where not in available:
            skipped[subject.label] = f"{where} is not installed here"
            continue
        try:
            reports.append(_verify(subject, where, lengths, on_check))
        except CausalAttnError as error:
            failed.append((subject, where, error))
    if not reports and failed:
        raise failed[0][2]
    if not reports:
        raise ProviderError(
            f"`provider` must be one that a variant of {path.name} is made for and that is "
            f"installed, {[str(p) for p in available]}, got {str(wanted)!r}; {skipped}."
        )
    reports += [_nothing_decided(*failure) for failure in failed]
    return Report(path=path, variants=tuple(reports), skipped=skipped)


def _verify(
    subject: Subject,
    provider: Provider,
    lengths: Sequence[int] | None,
    on_check: Callable[[str], None],
) -> VariantReport:
    dynamic: tuple[Check, ...]
    placement: dict[str, int] = {}
    not_checked: list[str] = []
    witness: Witness | None = None
    try:
        session = subject.open(provider)
    except (EngineError, PackageError) as error:
        # An operator that nobody knows is no fault of the file; any other fault is.
        if isinstance(error, PackageError) and not made_up_operators(subject.model):
            raise
        dynamic = (_not_run(subject, provider, f"ONNX Runtime does not load it: {error}"),)
    else:
        with session:
            on_check(f"sizes on {provider}")
            placement = count_placement(session)
            ran = _sizes(session, subject, lengths)
            not_checked += ran.notes
            subject = replace(subject, interface=ran.interface)
            if ran.lengths:
                subject = replace(subject, positions=ran.positions)
                interface = _found_by_running(session, subject.interface)
                subject = replace(subject, interface=interface)
                dynamic, reasons = _run(session, subject, ran, on_check)
                not_checked += reasons
                witness = find_witness(session, interface.feeder, subject.proof.leak, dynamic)
                dynamic = (*dynamic, *witness_check(witness, dynamic, session))
                if subject.variant.contract.form == "foreign":
                    dynamic = (check_declared_dims(ran, provider), *dynamic)
            else:
                detail = f"no input that was tried runs: {ran.reason}"
                dynamic = (_not_run(subject, provider, detail),)
    static = check_file(subject, on_check)
    interface = subject.interface
    return VariantReport(
        variant=subject.variant.name,
        component=subject.variant.component,
        provider=provider,
        certificate=certify(subject, (*static, *dynamic)),
        contract=interface.feeder.contract,
        visibility=subject.proof.outputs,
        leak=subject.proof.leak,
        witness=witness,
        placement=placement,
        not_checked=(
            *interface.notes,
            *_rowless(interface),
            *not_checked,
            *_held(interface, dynamic),
        ),
    )


def _nothing_decided(
    subject: Subject, provider: Provider, error: CausalAttnError
) -> VariantReport:
    """The report of a variant that could not be verified while others were."""
    check = Check(name="runs", passed=None, detail=str(error), provider=str(provider))
    return VariantReport(
        variant=subject.variant.name,
        component=subject.variant.component,
        provider=provider,
        certificate=Certificate(digest=subject.digest, verdict=Verdict.UNDECIDED, checks=(check,)),
        contract=subject.variant.contract,
    )


def _rowless(interface: Interface) -> list[str]:
    return [
        f"output {name!r}: it has no token axis; if it grows with the tokens, the proof alone "
        "looks at it"
        for name in interface.others
    ]


def _held(interface: Interface, checks: Sequence[Check]) -> list[str]:
    """Inputs whose values follow from the sizes, and the checks that feed others too."""
    ran = {check.name for check in checks}
    notes = []
    for name in interface.feeder.fixed:
        but = [OTHER_VALUES] if name in interface.conditions else []
        but += [PADDING] if name in (interface.mask, interface.positions) else []
        words = " and ".join(f"{check!r}" for check in but if check in ran)
        only = f"every check but {words}" if words else "every check"
        notes.append(f"input {name!r}: {only} runs while {interface.held[name]}")
    return notes


def _not_run(subject: Subject, provider: Provider, detail: str) -> Check:
    """Nothing was run, which decides nothing.

    Raises:
        UsageError: And without running it, no output is known to have a token axis.
    """
    if not subject.interface.outputs:
        raise UsageError(
            "`outputs` must have one with a token axis, got none by name, and running the model "
            f"to find it failed: {detail}"
        )
    return Check(name="runs", passed=None, detail=detail, provider=str(provider))


def _sizes(session: Session, subject: Subject, lengths: Sequence[int] | None) -> Runnable:
    """A contract is a promise to run; a model of others is tried first."""
    marks = graph_lengths(subject.model)
    if subject.variant.contract.form != "foreign":
        promised = tuple(lengths or LENGTHS)
        (far,) = subject.variant.contract.lengths_within([max(promised)])
        reach, left = far, list[str]()
        if subject.interface.fixed_tokens is None:
            reach, left = find_reach(session, subject.interface, far, marks)
        return Runnable(
            interface=subject.interface,
            lengths=promised,
            positions=far,
            reach=reach,
            notes=tuple(left),
        )
    return find_runnable(session, subject.interface, lengths or FOREIGN_LENGTHS, marks)


def _run(
    session: Session,
    subject: Subject,
    ran: Runnable,
    on_check: Callable[[str], None],
) -> tuple[tuple[Check, ...], list[str]]:
    """Every check that runs the graph, and what could not be checked."""
    yardstick, reasons = None, []
    try:
        yardstick = _yardstick(subject, ran.lengths)
    except CausalAttnError as error:
        reasons.append(f"parity: {error}")
    trial = Trial(
        session=session,
        feeder=subject.interface.feeder,
        interface=subject.interface,
        yardstick=yardstick,
        lengths=ran.lengths,
        reach=ran.reach,
        marks=graph_lengths(subject.model).all,
    )
    checks = run_checks(trial, on_check)
    if session.provider is Provider.CUDA and yardstick is not None:
        reasons.append(_with_tf32(subject, trial))
    return checks, reasons


def _with_tf32(subject: Subject, trial: Trial) -> str:
    """What TF32, ONNX Runtime's default on CUDA, adds to the error: stated, not judged."""
    with subject.open(Provider.CUDA, tf32=True) as session:
        check = check_parity(replace(trial, session=session))
    assert check is not None  # the trial has a yardstick
    return f"TF32 was off; with use_tf32=1, ONNX Runtime's default: {check.detail}"


def _found_by_running(session: Session, interface: Interface) -> Interface:
    """Token axes of outputs whose dims carry no name: those that grow with the tokens."""
    names = interface.unplaced if interface.outputs else interface.others
    if not names or interface.fixed_tokens is not None or interface.rowless:
        return interface
    rng = np.random.default_rng(0)
    shapes = []
    for sizes in interface.feeder.cases((5, 7)):
        sizes = {**sizes, **{name: 2 for name in sizes if name not in ("tokens",)}}
        results = session.run(interface.feeder.make({**sizes, **interface.feeder.pinned}, rng))
        shapes.append({name: results[name].shape for name in names})
    axes = {}
    for name, short in shapes[0].items():
        grown = [axis for axis, size in enumerate(short) if shapes[1][name][axis] == size + 2]
        if grown:
            axes[name] = grown[0]
    if not axes and not interface.outputs:
        if shapes[0] == shapes[1]:
            return replace(with_outputs(interface, {}), rowless=True)
        raise UsageError(
            "`outputs` must have one that grows by one with each token, got shapes "
            f"{list(shapes[0].values())} at 5 tokens and {list(shapes[1].values())} at 7: which "
            "rows are of which token is not known."
        )
    return with_outputs(interface, axes)


def _yardstick(subject: Subject, lengths: Sequence[int]) -> Yardstick:
    """The reference where there is a spec, the graph itself in float64 otherwise.

    Raises:
        CausalAttnError: The graph cannot be run in float64.
    """
    spec = subject.variant.contract.spec
    if spec is not None:

        def run(feeds: Feeds) -> Feeds:
            return run_spec(spec, feeds)

        return Yardstick(oracle=run, baseline=run)
    feeder = subject.interface.feeder
    wide = GraphRun(subject.variant.model, wide=True)
    plain = GraphRun(subject.variant.model, wide=False)
    (sizes,) = feeder.cases((min(lengths),))
    feeds = feeder.make(sizes, np.random.default_rng(0))
    plain(feeds)
    wide(widened(feeds))
    return Yardstick(oracle=wide, baseline=plain, rounded=wide.rounded)
