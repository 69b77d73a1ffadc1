"""All checks of one graph on one provider, in order, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from causal_attn.certificate import Certificate, Check, Verdict
from causal_attn.runtime import Session
from causal_attn.verify.causality import (
    PROBE_LENGTHS,
    check_batch_is_independent,
    check_future_is_invisible,
    check_past_matters,
    check_weights,
)
from causal_attn.verify.feeds import LENGTHS, Feeder
from causal_attn.verify.parity import Run, check_parity

__all__ = ["LOWEST_MASK_BOUND", "certify", "run_checks"]

LOWEST_MASK_BOUND = 1.7e38
"""Largest ``|score|`` under which a mask of the lowest float32 hides a key.

ONNX Runtime's Attention-23/24 kernel adds M = -3.4028e38 to a masked score. The weight is exactly
0 when the masked score lies more than 104 below the highest visible one (exp underflows in
float32). With all ``|score| <= S`` the gap is at least ``|M| - 2 S``, so S = (|M| - 104) / 2.
"""


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
    probes = [length for length in PROBE_LENGTHS if length <= max(lengths)] or [max(lengths)]
    steps: list[tuple[str, Callable[[], Check | None]]] = []
    if oracle is not None and baseline is not None:
        run, plain = oracle, baseline
        steps.append(
            ("parity", lambda: check_parity(session, feeder, run, plain, lengths=lengths))
        )
    steps.append(
        ("future is invisible", lambda: check_future_is_invisible(session, feeder, lengths=probes))
    )
    if max(lengths) > 1:
        length = min(13, max(lengths))
        steps.append(("past matters", lambda: check_past_matters(session, feeder, length=length)))
    steps += [
        (
            "batch is independent",
            lambda: check_batch_is_independent(session, feeder, length=min(9, max(lengths))),
        ),
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


def certify(digest: str, checks: Sequence[Check], *, finite_mask: bool = False) -> Certificate:
    """The certificate that `checks` amount to.

    Args:
        digest: Of the model they ran on.
        checks: Their results.
        finite_mask: Whether a kernel adds the lowest float32 where ``-inf`` is meant; the claim
            is then conditional.
    """
    future = [check.passed for check in checks if check.name == "future is invisible"]
    if False in future:
        verdict = Verdict.NOT_CAUSAL
    elif not future or None in future:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.CONDITIONAL if finite_mask else Verdict.CAUSAL
    return Certificate(
        digest=digest,
        verdict=verdict,
        checks=tuple(checks),
        score_bound=LOWEST_MASK_BOUND if verdict is Verdict.CONDITIONAL else None,
        versions=_versions(),
    )


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
