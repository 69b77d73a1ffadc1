"""All checks of one graph on one provider, in order, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.runtime import Session
from causal_attn.verify.checks.causality import (
    PROBE_LENGTHS,
    check_batch_is_independent,
    check_future_is_invisible,
    check_past_matters,
    check_weights,
    check_window,
)
from causal_attn.verify.checks.parity import Run, check_large_inputs, check_parity
from causal_attn.verify.feeds.feeder import LENGTHS, Feeder, switch_lengths

__all__ = ["PROOF", "certify", "run_checks"]

PROOF = "influence proof"
FUTURE = "future is invisible"


def run_checks(
    session: Session,
    feeder: Feeder,
    oracle: Run | None,
    baseline: Run | None,
    *,
    lengths: Sequence[int] = LENGTHS,
    on_check: Callable[[str], None] = lambda _: None,
) -> tuple[Check, ...]:
    """Parity, causality and weights of a graph on the session's provider.

    Args:
        session: The graph.
        feeder: Of its inputs.
        oracle: Right results for feeds in float64; ``None`` leaves parity out.
        baseline: Plain results at the dtype of the feeds.
        lengths: Tokens of the parity check; the probes run at those of `PROBE_LENGTHS` that are
            not longer.
        on_check: Called with the name of each check before it runs.
    """
    # Each branch of a graph that switches is a graph of its own.
    switches = switch_lengths(feeder.contract)
    lengths = sorted({*lengths, *switches})
    longest = max(lengths)
    probes = [length for length in PROBE_LENGTHS if length <= longest] or [longest]
    probes += [length for length in switches if length > max(probes)]
    steps: list[tuple[str, Callable[[], Check | None]]] = []
    if oracle is not None and baseline is not None:
        run, plain = oracle, baseline
        steps.append(
            ("parity", lambda: check_parity(session, feeder, run, plain, lengths=lengths))
        )
        steps.append(
            (
                "large inputs",
                lambda: check_large_inputs(
                    session, feeder, run, plain, length=min(5, max(lengths))
                ),
            )
        )
    if "tokens" in feeder.pinned:
        probes = [feeder.pinned["tokens"]]
    steps.append((FUTURE, lambda: check_future_is_invisible(session, feeder, lengths=probes)))
    if longest > 1:
        length = min(13, longest)
        steps.append(("past matters", lambda: check_past_matters(session, feeder, length=length)))
    steps += [
        (
            "batch is independent",
            lambda: check_batch_is_independent(session, feeder, length=min(9, longest)),
        ),
        ("window", lambda: check_window(session, feeder, length=_past_window(feeder, longest))),
        ("weights", lambda: check_weights(session, feeder, lengths=probes)),
    ]
    checks: list[Check] = []
    for name, step in steps:
        on_check(f"{name} on {session.provider}")
        check = step()
        if check is not None:
            checks.append(check)
            if check.passed is False and "does not run" in check.detail:
                break
    return tuple(checks)


def _past_window(feeder: Feeder, longest: int) -> int:
    """A length at which a claimed window hides something."""
    spec = feeder.contract.spec
    window = spec.window if spec is not None and spec.window is not None else 0
    return min(window + 9, longest)


def certify(
    digest: str,
    checks: Sequence[Check],
    *,
    proved: Verdict | None = None,
    score_bound: float | None = None,
) -> Certificate:
    """The certificate that `checks` amount to.

    A probe that sees the future outweighs any proof. A proof that finds a path for which no probe
    finds a number does too: the path is there. Where the two disagree, a check says so.

    Args:
        digest: Of the model they ran on.
        checks: Their results.
        proved: Verdict of the influence proof; ``None``: there was none.
        score_bound: Of a conditional proof.
    """
    future = [check.passed for check in checks if check.name == FUTURE]
    checks = [*checks, *_agreement(future, proved)]
    if False in future or proved is Verdict.NOT_CAUSAL:
        verdict = Verdict.NOT_CAUSAL
    elif not future or None in future or proved is Verdict.UNDECIDED:
        verdict = Verdict.UNDECIDED
    else:
        verdict = proved or Verdict.CAUSAL
    return Certificate(
        digest=digest,
        verdict=verdict,
        checks=tuple(checks),
        score_bound=score_bound if verdict is Verdict.CONDITIONAL else None,
        versions=_versions(),
    )


def _agreement(future: Sequence[bool | None], proved: Verdict | None) -> list[Check]:
    """A failed check where proof and probe contradict each other.

    A conditional proof and a probe that leaks agree: the probe went beyond the bound.
    """
    if False in future and proved is Verdict.CAUSAL:
        detail = "the proof says causal, a probe sees the future: one of the two is wrong"
    elif proved is Verdict.NOT_CAUSAL and True in future and False not in future:
        detail = (
            "the proof finds a path from the future, no probe finds a number that takes it: it "
            "may be multiplied by zero, or reach nothing that is rounded"
        )
    else:
        return []
    return [Check(name="proof and probes agree", passed=False, detail=detail)]


def _versions() -> dict[str, str]:
    found = {}
    for name in (
        "causal-attn", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnx", "torch",
    ):  # fmt: skip
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
