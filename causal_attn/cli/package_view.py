"""A package shown on the terminal or as JSON: what `export` and `inspect` end with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from causal_attn.cli.console import out, print_json

if TYPE_CHECKING:
    from causal_attn.package import Package, Variant

__all__ = ["show_package", "variant_values"]


def show_package(package: Package, as_json: bool) -> None:
    """Print the variants, and the contract of the first."""
    from causal_attn.cli.tables import contract_notes, contract_table, package_table

    if as_json:
        variants = [variant_values(variant) for variant in package.variants]
        print_json({"path": str(package.root), "name": package.name, "variants": variants})
        return
    out.print(package_table(package))
    out.print(contract_table(package.variants[0].contract))
    for note in contract_notes(package.variants[0].contract):
        out.print(escape(note))


def variant_values(variant: Variant) -> dict[str, Any]:
    """Contract and certificate as JSON values."""
    certificate = variant.certificate
    return {
        "variant": variant.name,
        "provider": str(variant.provider or variant.ep),
        "contract": json.loads(variant.contract.to_json()),
        "certificate": None if certificate is None else json.loads(certificate.to_json()),
        "passed": certificate is not None and certificate.passed,
    }
