"""What the checks of a model add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from causal_attn.machine.wheels import installed_wheels, version_of
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.verify.checks.future import FUTURE
from causal_attn.verify.checks.other_values import OTHER_VALUES
from causal_attn.verify.checks.proof import PROOF
from causal_attn.verify.checks.witness import WITNESS

if TYPE_CHECKING:
    from causal_attn.verify.influence import Proof
    from causal_attn.verify.subject import Subject

__all__ = ["certify"]

_CHECKERS = ("causal-attn", "onnx", "torch")
"""Beside the one ONNX Runtime."""


def certify(subject: Subject, checks: Sequence[Check]) -> Certificate:
    """The certificate that `checks` of `subject` amount to.

    A probe that sees the future outweighs any proof. A proof that finds a path for which no probe
    finds a number does too, if the path is there whatever the data is. One that rests on a choice
    by data which the proof cannot follow decides nothing alone. Where the two disagree, a check
    says so.
    """
    proof = subject.proof
    future = [check.passed for check in checks if check.name in (FUTURE, WITNESS)]
    unsure = True in future and False not in future and _rests_on_data(proof)
    if unsure:
        checks = [_undecided(check, proof) if check.name == PROOF else check for check in checks]
    elif proof.leak is None or proof.leak.output in subject.interface.outputs:
        # No probe looks at an output whose rows are not the tokens.
        checks = [*checks, *_agreement(future, proof.verdict)]
    if False in future or (proof.verdict is Verdict.NOT_CAUSAL and not unsure):
        verdict = Verdict.NOT_CAUSAL
    elif subject.interface.rowless:
        verdict = proof.verdict
    elif unsure or not future or None in future:
        verdict = Verdict.UNDECIDED
    elif proof.verdict is Verdict.CAUSAL and any(_opened(check) for check in checks):
        verdict = Verdict.CONDITIONAL
    else:
        verdict = proof.verdict
    return Certificate(
        digest=subject.digest,
        verdict=verdict,
        checks=tuple(checks),
        score_bound=proof.score_bound if verdict is Verdict.CONDITIONAL else None,
        versions=_versions(),
    )


def _opened(check: Check) -> bool:
    """Whether a probe saw the future at values of an input that the proof takes as fixed."""
    return check.name == OTHER_VALUES and check.passed is None


def _rests_on_data(proof: Proof) -> bool:
    leak = proof.leak
    return proof.verdict is Verdict.NOT_CAUSAL and leak is not None and bool(leak.assumed)


def _undecided(check: Check, proof: Proof) -> Check:
    """The proof's check where its path may not be there and no probe takes it."""
    assert proof.leak is not None  # a path was found
    nodes = ", ".join(proof.leak.assumed)
    detail = (
        f"undecided because of {nodes}: data decides what it lets through. For some data "
        f"{proof.leak}, if other values allow that data; no probe finds it"
    )
    return replace(check, passed=None, detail=detail)


def _agreement(future: Sequence[bool | None], proved: Verdict) -> list[Check]:
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
    found = {name: version_of(name) for name in _CHECKERS}
    known = {name: version for name, version in found.items() if version is not None}
    return {**known, **installed_wheels()}
