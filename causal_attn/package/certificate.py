"""What was checked, on what, with what result: `certificate.json`, bound to a model by sha256."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from causal_attn.package.json_fields import read_fields, refusal, write_fields

__all__ = ["SCHEMA", "Certificate", "Check", "Verdict"]

SCHEMA = "causal_attn.certificate/1"

_FIELDS = {"digest", "verdict", "checks", "score_bound", "versions"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Verdict(StrEnum):
    """Whether the graph is causal."""

    CAUSAL = "causal"
    NOT_CAUSAL = "not causal"
    CONDITIONAL = "conditional"
    """Causal while scores stay within ``score_bound`` (a finite mask constant is added), or while
    an input has the values that a check names."""
    UNDECIDED = "undecided"
    OF_ALL_TOKENS = "of all tokens"
    """No output has a token axis, so that none can be causal or not: each is of all tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check and its result.

    Attributes:
        name: Such as ``parity`` or ``future is invisible``.
        passed: ``None``: it could not be decided; `detail` says why.
        detail: One sentence for a person.
        figures: Numbers behind it, as JSON values.
        provider: Short name of the execution provider it ran on; ``""`` for a static check.
        ran: Whether the graph ran where it should, so that more can be asked of it. It is for
            those who run the checks and is not written.
    """

    name: str
    passed: bool | None
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    provider: str = ""
    ran: bool = field(default=True, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The checks a model went through.

    Attributes:
        digest: sha256 of the model, hex: see `causal_attn.package.digest`.
        verdict: Of the causal claim.
        checks: All of them, passed or not.
        score_bound: With ``conditional``: the largest ``|score|`` under which the claim holds.
        versions: Distribution name to version, of what did the checking.
    """

    digest: str
    verdict: Verdict
    checks: tuple[Check, ...]
    score_bound: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def conditions(self) -> tuple[str, ...]:
        """With ``conditional``: what must hold of inputs, such as ``token_type_ids are 0``."""
        if self.verdict is not Verdict.CONDITIONAL:
            return ()
        found = [check.figures.get("conditions") for check in self.checks]
        words = (str(word) for some in found if isinstance(some, list) for word in some)
        return tuple(dict.fromkeys(words))

    @property
    def passed(self) -> bool:
        """Every check passed, and the verdict is one that may go with a model.

        That is causal, conditional with its bound stated, or of all tokens.
        """
        return (
            bool(self.checks)
            and all(check.passed is True for check in self.checks)
            and (
                self.verdict in (Verdict.CAUSAL, Verdict.OF_ALL_TOKENS)
                or (self.verdict is Verdict.CONDITIONAL and self.score_bound is not None)
            )
        )

    def to_json(self) -> str:
        """Indented JSON with sorted keys, the text of ``certificate.json``.

        JSON has no ``nan`` and ``inf``: such a figure, which a failed check has good reason to
        record, is written as the string ``"nan"``, ``"inf"`` or ``"-inf"``.

        Raises:
            PackageError: A figure is not a JSON value.
        """
        values = {
            "schema": SCHEMA,
            "digest": self.digest,
            "verdict": str(self.verdict),
            "checks": [
                {
                    "name": check.name,
                    "passed": check.passed,
                    "detail": check.detail,
                    "figures": _finite(check.figures),
                    "provider": check.provider,
                }
                for check in self.checks
            ],
            "score_bound": self.score_bound,
            "versions": dict(self.versions),
        }
        return write_fields(values, "The certificate")

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read what `to_json` wrote.

        Raises:
            PackageError: `text` is not JSON or not a certificate; the message says where.
        """
        values = read_fields(text, "The certificate", SCHEMA, _FIELDS)
        try:
            verdict = Verdict(values["verdict"])
        except ValueError:
            wanted = f"be one of {[str(verdict) for verdict in Verdict]}"
            raise refusal("verdict", wanted, values["verdict"]) from None
        digest, bound, versions = values["digest"], values["score_bound"], values["versions"]
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise refusal("digest", "be 64 hex digits", digest)
        if not isinstance(versions, dict) or not all(
            isinstance(version, str) for version in versions.values()
        ):
            raise refusal("versions", "be an object of strings", versions)
        if bound is not None and (
            not isinstance(bound, int | float)
            or isinstance(bound, bool)
            or not 0 < bound <= sys.float_info.max
        ):
            raise refusal("score_bound", "be a finite number > 0 or null", bound)
        if not isinstance(values["checks"], list):
            raise refusal("checks", "be a list", values["checks"])
        return cls(
            digest=digest,
            verdict=verdict,
            checks=tuple(_check(index, value) for index, value in enumerate(values["checks"])),
            score_bound=bound,
            versions=versions,
        )


def _check(index: int, value: Any) -> Check:
    fields = {"name": str, "detail": str, "provider": str, "figures": dict}
    if (
        not isinstance(value, dict)
        or set(value) != {*fields, "passed"}
        or not all(isinstance(value[name], kind) for name, kind in fields.items())
        or value["passed"] not in (True, False, None)
        or isinstance(value["passed"], int | float) is not isinstance(value["passed"], bool)
    ):
        wanted = "have name, passed, detail, figures and provider"
        raise refusal(f"checks[{index}]", wanted, value)
    return Check(**value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value
