"""Put what was verified into what was verified: certificates in packages and lone models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package import VariantSource, read_package, write_package
from causal_attn.package.certificate import Certificate
from causal_attn.package.digest import CERTIFICATE_KEY, CONTRACT_KEY, write_metadata
from causal_attn.verify.checks.proof import LOW_BOUND
from causal_attn.verify.report import Report

__all__ = ["write_certificates"]


def write_certificates(report: Report) -> bool:
    """Write the certificates of `report` into its package or model; no graph is touched.

    A model that did not pass loses the certificate it had: the runtime then refuses it. A lone
    model of others gets its contract too, so that the runtime can load it.

    Args:
        report: Of `causal_attn.verify.verify`.

    Returns:
        Whether every model that was verified is certified now.

    Raises:
        UsageError: The package has variants of others, or cannot be written.
        PackageError: The model cannot be written.
    """
    passed = {one.key: _passed(one.certificate) for one in report.variants}
    if report.path.is_dir():
        _rewrite(report.path, passed)
    else:
        (one,) = report.variants
        entries = {CONTRACT_KEY: one.contract.to_json()}
        certificate = passed[one.key]
        if certificate is not None:
            entries[CERTIFICATE_KEY] = certificate.to_json()
        write_metadata(report.path, entries)
    return all(passed.values())


def _passed(certificate: Certificate) -> Certificate | None:
    """`certificate`, if it may go with a model."""
    bound = certificate.score_bound
    return certificate if certificate.passed and (bound is None or bound >= LOW_BOUND) else None


def _rewrite(path: Path, verified: Mapping[tuple[str, str], Certificate | None]) -> None:
    package = read_package(path)
    unknown = [variant.name for variant in package.variants if variant.provider is None]
    if package.foreign or unknown:
        raise UsageError(
            f"`path` must be a package of ours alone, got {[*package.foreign, *unknown]} of "
            f"others in {path}. Certify the models one by one."
        )
    write_package(
        path,
        name=package.name,
        version=package.version,
        description=package.description,
        variants=[
            VariantSource(
                provider=variant.provider or Provider.CPU,
                model=variant.model,
                contract=variant.contract,
                certificate=verified.get((variant.component, variant.name), variant.certificate),
                name=variant.name,
                component=variant.component,
                session_options=variant.session_options,
            )
            for variant in package.variants
        ],
    )
