"""What `verify` found, and the exit code that it amounts to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate
from causal_attn.package.contract import Contract
from causal_attn.verify.checks.witness import Witness
from causal_attn.verify.influence import Leak

__all__ = ["Report", "VariantReport"]


@dataclass(frozen=True, kw_only=True)
class VariantReport:
    """One model on one provider.

    Attributes:
        variant: Its name in the package, or the file's stem.
        component: What the package calls the model; ``""`` for a lone file.
        provider: Where it ran.
        certificate: What was checked, and the verdict.
        contract: What it was fed by; found by `verify` itself for a model of others.
        visibility: Of every output that was examined: which row (of the new tokens) is reached by
            which position (of the past, then the new tokens), bool.
        leak: The first pair of positions that must not meet, and the path between them.
        witness: Two inputs and the row that differs, where a run shows a leak.
        placement: ``"MatMul on cpu"`` to the number of such nodes.
        not_checked: What was not checked and why, a sentence each.
    """

    variant: str
    component: str = ""
    provider: Provider
    certificate: Certificate
    contract: Contract
    visibility: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    leak: Leak | None = None
    witness: Witness | None = None
    placement: Mapping[str, int] = field(default_factory=dict)
    not_checked: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Component and variant, which are unique in a package; a variant's name is not."""
        return self.component, self.variant

    @property
    def label(self) -> str:
        """``component/variant`` in a package, the file's stem otherwise."""
        return f"{self.component}/{self.variant}" if self.component else self.variant

    def to_dict(self) -> dict[str, Any]:
        """JSON values; a visibility matrix is a list of rows of 0 and 1."""
        leak = self.leak
        return {
            "variant": self.variant,
            "component": self.component,
            "provider": str(self.provider),
            "passed": self.certificate.passed,
            "certificate": json.loads(self.certificate.to_json()),
            "visibility": {
                name: matrix.astype(int).tolist() for name, matrix in self.visibility.items()
            },
            "leak": None
            if leak is None
            else {
                "output": leak.output,
                "query": leak.query,
                "position": leak.position,
                "tokens": leak.tokens,
                "past": leak.past,
                "path": list(leak.path),
                "crossing": leak.crossing,
                "crossed_at": leak.crossed_at,
                "layer": leak.layer,
                "crossed": None if leak.crossed is None else leak.crossed.to_dict(),
            },
            "witness": None if self.witness is None else str(self.witness),
            "placement": dict(self.placement),
            "not_checked": list(self.not_checked),
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """All variants that were verified.

    Attributes:
        path: What was verified.
        variants: One report for each variant and provider.
        skipped: ``component/variant`` to the reason why it was not run.
    """

    path: Path
    variants: tuple[VariantReport, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 all checks passed, 1 a check failed, 3 something could not be decided."""
        checks = [check for report in self.variants for check in report.certificate.checks]
        if any(check.passed is False for check in checks):
            return 1
        return 0 if all(report.certificate.passed for report in self.variants) else 3

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "path": str(self.path),
            "exit_code": self.exit_code,
            "variants": [report.to_dict() for report in self.variants],
            "skipped": dict(self.skipped),
        }
