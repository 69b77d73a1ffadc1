"""`causal-attn inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from causal_attn.cli.console import JsonFlag, out, print_json

__all__ = ["inspect"]


def inspect(
    path: Annotated[Path, typer.Argument(help="A package, or an .onnx file with a contract.")],
    as_json: JsonFlag = False,
) -> None:
    """Show contract and certificate; nothing is run."""
    from causal_attn.cli.package_view import show_package, variant_values
    from causal_attn.cli.tables import check_table, contract_notes, contract_table, verdict_line
    from causal_attn.package import open_model, read_package

    if path.is_dir():
        package = read_package(path)
        show_package(package, as_json)
        for variant in package.variants if not as_json else ():
            if variant.certificate is not None:
                out.print(check_table(variant.certificate.checks, f"checks of {variant.name}"))
        return
    variant = open_model(path)
    if as_json:
        print_json(variant_values(variant))
        return
    out.print(contract_table(variant.contract))
    for note in contract_notes(variant.contract):
        out.print(escape(note))
    if variant.certificate is not None:
        out.print(check_table(variant.certificate.checks, "checks"))
        out.print("verdict:", verdict_line(variant.certificate))
