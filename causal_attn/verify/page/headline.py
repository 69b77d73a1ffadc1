"""The verdict on a variant in a few words, its tone, and the reason, for the HTML page."""

from __future__ import annotations

from typing import NamedTuple

from causal_attn.package.certificate import Check, Verdict
from causal_attn.verify.influence import Leak
from causal_attn.verify.page.text import visible
from causal_attn.verify.report import VariantReport

__all__ = ["Headline", "headline"]


class Headline(NamedTuple):
    """What a variant amounts to.

    Attributes:
        tone: ``good`` or ``conditional`` if the certificate passed; else ``bad`` if a check
            failed or the graph is not causal, and ``unsure``.
        words: The verdict, and what stands against it.
        reason: One sentence, as a model may have worded it.
        leak: What stands in place of the reason, if there is one.
    """

    tone: str
    words: str
    reason: str
    leak: Leak | None = None


def headline(variant: VariantReport) -> Headline:
    """The verdict, and whether the other checks let it stand."""
    certificate = variant.certificate
    failed = [check for check in certificate.checks if check.passed is False]
    unsure = [check for check in certificate.checks if check.passed is None]
    if certificate.verdict is Verdict.NOT_CAUSAL:
        reason = _reason(failed, "No leaking pair is recorded.")
        return Headline("bad", "Not causal", reason, variant.leak)
    if certificate.verdict is Verdict.UNDECIDED:
        tone, words = "unsure", "Undecided"
        spare = (*variant.not_checked, "No check of causality is recorded.")[0]
        reason = _reason(unsure, spare)
    elif certificate.verdict is Verdict.CAUSAL:
        tone, words, reason = "good", "Causal", _reason(unsure, "")
    elif certificate.conditions:
        wanted = " and ".join(visible(words)[:80] for words in certificate.conditions)
        tone, words, reason = "unsure", f"Causal while {wanted}", _reason(unsure, "")
    elif certificate.verdict is Verdict.OF_ALL_TOKENS:
        tone, words = "conditional", "Of all tokens"
        reason = "No output has a token axis, so that causality is nothing that it has or lacks."
    elif certificate.score_bound is None:
        tone, words, reason = "unsure", "Conditional", _reason(unsure, "No bound is recorded.")
    else:
        tone, words = "conditional", f"Causal while |score| ≤ {certificate.score_bound:.3g}"
        reason = "A finite mask hides the future only while scores stay in this bound."
    if failed:
        link = "and" if tone == "unsure" else "but"
        return Headline("bad", f"{words}, {link} {_names(failed)} failed", _reason(failed, ""))
    if unsure and tone != "unsure":
        words = f"{words}, but {_names(unsure)} is undecided"
        return Headline("unsure", words, _reason(unsure, ""))
    if not certificate.checks and tone != "unsure":
        return Headline("unsure", f"{words}, but nothing was checked", "No check is recorded.")
    if tone == "good":
        reason = f"All {len(certificate.checks)} checks passed."
    return Headline(tone, words, reason)


def _names(checks: list[Check]) -> str:
    return " and ".join(dict.fromkeys(f"“{visible(check.name)[:60]}”" for check in checks))


def _reason(checks: list[Check], otherwise: str) -> str:
    text = "; ".join(check.detail for check in checks) or otherwise
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
