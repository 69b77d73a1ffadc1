"""`verify`: check an exported model again, without torch, on the providers of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_attn.certificate import Certificate
from causal_attn.digest import model_digest
from causal_attn.errors import ProviderError
from causal_attn.package import Variant, open_model, read_package
from causal_attn.provider import Provider
from causal_attn.runtime import available_providers, load
from causal_attn.verify.checks import certify, run_checks
from causal_attn.verify.feeds import LENGTHS, Feeds
from causal_attn.verify.oracle import run_spec
from causal_attn.verify.parity import Run
from causal_attn.verify.structure import check_inputs_are_read, check_placement

__all__ = ["Report", "VariantReport", "verify"]


@dataclass(frozen=True, kw_only=True)
class VariantReport:
    """One model on one provider.

    Attributes:
        variant: Its name in the package.
        provider: Where it ran.
        certificate: What was checked, and the verdict.
    """

    variant: str
    provider: Provider
    certificate: Certificate


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `verify` found.

    Attributes:
        path: What was verified.
        variants: One report for each variant and provider.
        skipped: Variant to the reason why it was not run.
    """

    path: Path
    variants: tuple[VariantReport, ...]
    skipped: dict[str, str]

    @property
    def exit_code(self) -> int:
        """0 all checks passed, 1 a check failed, 3 something could not be decided."""
        if any(
            check.passed is False
            for report in self.variants
            for check in report.certificate.checks
        ):
            return 1
        return 0 if all(report.certificate.passed for report in self.variants) else 3

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        import json

        return {
            "path": str(self.path),
            "exit_code": self.exit_code,
            "variants": [
                {
                    "variant": report.variant,
                    "provider": str(report.provider),
                    "passed": report.certificate.passed,
                    "certificate": json.loads(report.certificate.to_json()),
                }
                for report in self.variants
            ],
            "skipped": self.skipped,
        }


def verify(
    path: str | Path,
    *,
    provider: str | Provider | None = None,
    lengths: Sequence[int] = LENGTHS,
    on_check: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run every check of a package, or of a lone model of ours, on this machine.

    The oracle is the reference in float64 where the contract has a spec, and the graph itself in
    float64 otherwise (`causal_attn.verify.widen`).

    Args:
        path: A package, or an ``.onnx`` file that carries a contract.
        provider: Where to run; default: every variant whose provider is installed.
        lengths: Tokens to check at.
        on_check: Called with a few words before each check.

    Raises:
        PackageError: `path` cannot be read, or its files contradict each other.
        ProviderError: `provider` is not installed, or no variant can run here.
    """
    path = Path(path)
    available = available_providers()
    wanted = None if provider is None else Provider.parse(provider)
    reports, skipped = [], {}
    for variant in _variants(path):
        where = wanted if variant.provider is None else variant.provider
        where = where or Provider.CPU
        if wanted is not None and where is not wanted:
            continue
        if where not in available:
            skipped[variant.name] = f"{where} is not installed here"
            continue
        reports.append(_verify_variant(variant, where, lengths, on_check))
    if not reports:
        raise ProviderError(
            f"`provider` must be one that a variant of {path.name} is made for and that is "
            f"installed, {[str(p) for p in available]}, got {str(wanted)!r}; {skipped}."
        )
    return Report(path=path, variants=tuple(reports), skipped=skipped)


def _variants(path: Path) -> tuple[Variant, ...]:
    if path.is_dir():
        return read_package(path).variants
    return (open_model(path),)


def _verify_variant(
    variant: Variant,
    provider: Provider,
    lengths: Sequence[int],
    on_check: Callable[[str], None],
) -> VariantReport:
    checks = [check_inputs_are_read(variant.model)]
    with load(variant.model, provider, accept="unverified") as session:
        checks.append(check_placement(session))
        oracle, baseline = _runs(variant)
        checks += run_checks(session, oracle, baseline, lengths=lengths, on_check=on_check)
    certificate = certify(
        model_digest(variant.model),
        checks,
        finite_mask="attention" in variant.contract.form.split("+"),
    )
    return VariantReport(variant=variant.name, provider=provider, certificate=certificate)


def _runs(variant: Variant) -> tuple[Run, Run]:
    spec = variant.contract.spec
    if spec is not None:

        def run(feeds: Feeds) -> Feeds:
            return run_spec(spec, feeds)

        return run, run
    from causal_attn.verify.widen import GraphRun

    return GraphRun(variant.model, wide=True), GraphRun(variant.model, wide=False)
