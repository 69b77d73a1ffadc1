"""All checks of one graph on one provider, in order, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from causal_attn.certificate import Certificate, Check, Verdict
from causal_attn.runtime import Session
from causal_attn.verify.causality import (
    PROBE_LENGTHS,
    check_future_is_invisible,
    check_past_matters,
    check_weights,
)
from causal_attn.verify.feeds import LENGTHS, Bounds, switch_lengths
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
    oracle: Run,
    baseline: Run,
    *,
    lengths: Sequence[int] = LENGTHS,
    bounds: Bounds | None = None,
    on_check: Callable[[str], None] = lambda _: None,
) -> tuple[Check, ...]:
    """Parity, causality and weights of a graph on the session's provider.

    Args:
        session: The graph.
        oracle: Right results for feeds in float64.
        baseline: Plain results at the dtype of the feeds.
        lengths: Tokens of the parity check; the probes run at those of `PROBE_LENGTHS` that are
            not longer.
        bounds: Of integer inputs, low and high exclusive.
        on_check: Called with the name of each check before it runs.
    """
    # Each branch of a graph that switches is a graph of its own.
    switches = switch_lengths(session.contract)
    lengths = sorted({*lengths, *switches})
    probes = [length for length in PROBE_LENGTHS if length <= max(lengths)] or [2]
    probes += [length for length in switches if length > max(probes)]
    steps: list[tuple[str, Callable[[], Check | None]]] = [
        (
            "parity",
            lambda: check_parity(session, oracle, baseline, lengths=lengths, bounds=bounds),
        ),
        (
            "future is invisible",
            lambda: check_future_is_invisible(session, lengths=probes, bounds=bounds),
        ),
        ("past matters", lambda: check_past_matters(session, bounds=bounds)),
        ("weights", lambda: check_weights(session, lengths=probes)),
    ]
    checks = []
    for name, step in steps:
        on_check(f"{name} on {session.provider}")
        check = step()
        if check is not None:
            checks.append(check)
            if check.passed is False and name == "parity" and "does not run" in check.detail:
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
