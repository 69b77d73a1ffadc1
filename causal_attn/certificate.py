"""What was checked, on what, with what result: `certificate.json`, bound to a model by sha256."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from causal_attn.errors import PackageError

__all__ = ["SCHEMA", "Certificate", "Check", "Verdict"]

SCHEMA = "causal_attn.certificate/1"


class Verdict(StrEnum):
    """Whether the graph is causal."""

    CAUSAL = "causal"
    NOT_CAUSAL = "not causal"
    CONDITIONAL = "conditional"
    """Causal while scores stay within ``score_bound`` (a finite mask constant is added)."""
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check and its result.

    Attributes:
        name: Such as ``parity`` or ``future is invisible``.
        passed: ``None``: it could not be decided; `detail` says why.
        detail: One sentence for a person.
        figures: Numbers behind it, as JSON values.
        provider: Short name of the execution provider it ran on; ``""`` for a static check.
    """

    name: str
    passed: bool | None
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    provider: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The checks a model went through.

    Attributes:
        digest: sha256 of the model, hex: see `causal_attn.digest`.
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
    def passed(self) -> bool:
        """Every check passed and the verdict is causal, or conditional with its bound stated."""
        return (
            bool(self.checks)
            and all(check.passed is True for check in self.checks)
            and (
                self.verdict is Verdict.CAUSAL
                or (self.verdict is Verdict.CONDITIONAL and self.score_bound is not None)
            )
        )

    def to_json(self) -> str:
        """Indented JSON with sorted keys, the text of ``certificate.json``."""
        values = asdict(self) | {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "checks": [asdict(check) for check in self.checks],
        }
        return json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read what `to_json` wrote.

        Raises:
            PackageError: `text` is not JSON or not a certificate; the message says where.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PackageError(f"The certificate must be JSON, got: {error}.") from None
        if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
            raise PackageError(f"The certificate must be a JSON object with schema {SCHEMA!r}.")
        known = {"digest", "verdict", "checks", "score_bound", "versions"}
        if set(values) != known:
            raise PackageError(
                f"The certificate must have exactly the fields {sorted(known)}, "
                f"got {sorted(values)}."
            )
        try:
            verdict = Verdict(values["verdict"])
        except ValueError:
            raise PackageError(
                f"`verdict` must be one of {[str(v) for v in Verdict]}, got {values['verdict']!r}."
            ) from None
        bound = values["score_bound"]
        if not isinstance(values["digest"], str) or not isinstance(values["versions"], dict):
            raise PackageError("`digest` must be a string and `versions` an object.")
        if bound is not None and (not isinstance(bound, int | float) or isinstance(bound, bool)):
            raise PackageError(f"`score_bound` must be a number or null, got {bound!r}.")
        if not isinstance(values["checks"], list):
            raise PackageError(f"`checks` must be a list, got {values['checks']!r}.")
        return cls(
            digest=values["digest"],
            verdict=verdict,
            checks=tuple(_check(index, value) for index, value in enumerate(values["checks"])),
            score_bound=bound,
            versions=values["versions"],
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
        raise PackageError(
            f"`checks[{index}]` must have name, passed, detail, figures and provider, got "
            f"{value!r}."
        )
    return Check(**value)
