"""The verdict on a variant in a few words, its tone, and the reason, for the HTML page."""

from __future__ import annotations

from typing import NamedTuple

from causal_attn.package.certificate import Check, Verdict
from causal_attn.verify.influence import Leak
from causal_attn.verify.page.markup import Markup, code, prose, tag, visible
from causal_attn.verify.report import VariantReport

__all__ = ["Headline", "headline", "leak_sentence"]


class Headline(NamedTuple):
    """What a variant amounts to.

    Attributes:
        tone: ``good`` or ``conditional`` if the certificate passed; else ``bad`` if a check
            failed or the graph is not causal, and ``unsure``.
        words: The verdict, and what stands against it.
        reason: One sentence.
    """

    tone: str
    words: str
    reason: Markup


def headline(variant: VariantReport) -> Headline:
    """The verdict, and whether the other checks let it stand."""
    certificate = variant.certificate
    failed = [check for check in certificate.checks if check.passed is False]
    unsure = [check for check in certificate.checks if check.passed is None]
    if certificate.verdict is Verdict.NOT_CAUSAL:
        if variant.leak is not None:
            return Headline("bad", "Not causal", leak_sentence(variant.leak))
        return Headline("bad", "Not causal", _reason(failed, "No leaking pair is recorded."))
    if certificate.verdict is Verdict.UNDECIDED:
        tone, words = "unsure", "Undecided"
        spare = (*variant.not_checked, "No check of causality is recorded.")[0]
        reason = _reason(unsure, spare)
    elif certificate.verdict is Verdict.CAUSAL:
        tone, words, reason = "good", "Causal", _reason(unsure, "")
    elif certificate.score_bound is None:
        tone, words, reason = "unsure", "Conditional", _reason(unsure, "No bound is recorded.")
    else:
        tone, words = "conditional", f"Causal while |score| ≤ {certificate.score_bound:.3g}"
        reason = prose("A finite mask hides the future only while scores stay in this bound.")
    if failed:
        link = "and" if tone == "unsure" else "but"
        return Headline("bad", f"{words}, {link} {_names(failed)} failed", _reason(failed, ""))
    if unsure and tone != "unsure":
        return Headline(
            "unsure", f"{words}, but {_names(unsure)} is undecided", _reason(unsure, "")
        )
    if not certificate.checks and tone != "unsure":
        return Headline(
            "unsure", f"{words}, but nothing was checked", prose("No check is recorded.")
        )
    if tone == "good":
        reason = prose(f"All {len(certificate.checks)} checks passed.")
    return Headline(tone, words, reason)


def _names(checks: list[Check]) -> str:
    return " and ".join(dict.fromkeys(f"“{visible(check.name)[:60]}”" for check in checks))


def _reason(checks: list[Check], otherwise: str) -> Markup:
    return prose(_sentence("; ".join(check.detail for check in checks) or otherwise), most=300)


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def leak_sentence(leak: Leak) -> Markup:
    """The leaking pair and the call in which it is seen."""
    cached = f" with {leak.past} in the cache" if leak.past else ""
    return tag(
        "span",
        f"Input position {leak.position} reaches position {leak.query} of ",
        code(leak.output),
        f" in a call of {leak.tokens} tokens{cached}.",
    )
