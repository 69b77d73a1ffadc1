"""The influence proof, as a check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from causal_attn.package.certificate import Check, Verdict

if TYPE_CHECKING:
    from causal_attn.verify.subject import Subject

__all__ = ["BATCH_PROOF", "LOW_BOUND", "PROOF", "check_batch_proof", "check_proof"]

PROOF = "influence proof"
BATCH_PROOF = "batch proof"

LOW_BOUND = 1e30
"""A conditional proof whose bound on the scores is below this decides nothing by itself.

The lowest float32 or bfloat16 as a mask gives 1.7e38, which no score of a sane model reaches; -1e4
gives 5e3, and only whoever knows the scores can say.
"""


def check_proof(subject: Subject) -> Check:
    """What `Subject.proof` found; what holds only for some inputs decides nothing by itself."""
    proof = subject.proof
    unreached = (proof.score_bound or 0) >= LOW_BOUND and not proof.conditions
    passed: bool | None = {
        Verdict.CAUSAL: True,
        Verdict.OF_ALL_TOKENS: True,
        Verdict.CONDITIONAL: unreached or None,
        Verdict.UNDECIDED: None,
        Verdict.NOT_CAUSAL: False,
    }[proof.verdict]
    figures: dict[str, Any] = {"lengths": list(proof.lengths), "notes": list(proof.notes)}
    if passed:
        figures["every_length"] = proof.every_length
    if proof.conditions:
        figures["conditions"] = list(proof.conditions)
    detail = str(proof)
    if proof.length_at:
        figures["length_at"] = list(proof.length_at)
        first, more = proof.length_at[0], len(proof.length_at) - 1
        others = f" and {more} more" if more else ""
        detail += f"; values depend on the length of the input at {first}{others}"
    return Check(name=PROOF, passed=passed, detail=detail, figures=figures)


def check_batch_proof(subject: Subject) -> Check | None:
    """What `Subject.independence` found; ``None`` where it proves nothing and samples decide."""
    found = subject.independence
    if found is None or not found.batches or found.undecided:
        return None
    if found.leak is not None and found.leak.assumed:
        # Data decides whether the path is there; a probe that takes it fails on its own.
        return None
    sizes = ", ".join(map(str, found.batches))
    detail = f"no sequence reaches another, in batches of {sizes}"
    if found.leak is not None:
        detail = f"sequences of a batch mix: {found.leak}"
    return Check(name=BATCH_PROOF, passed=found.leak is None, detail=detail)
