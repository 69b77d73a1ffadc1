"""`causal-attn demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from causal_attn.cli.console import JsonFlag, out, print_json, steps

__all__ = ["demo"]


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where package and picture go.")] = Path(
        "demo"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Export the reference, check it, run three tokens through it, draw the weights."""
    from causal_attn.cli.tables import check_table, matrix_table, verdict_line
    from causal_attn.demo import run_demo

    with steps() as on_step:
        made = run_demo(folder, on_step)
    if as_json:
        print_json(made.to_dict())
        return
    out.print(matrix_table(made.output, "output [tokens, features]"))
    out.print(matrix_table(made.weights, "weights [queries, keys]"))
    out.print(check_table(made.certificate.checks, "checks"))
    out.print("verdict:", verdict_line(made.certificate))
    out.print(f"export and checks: {made.export_seconds:.1f} s")
    out.print(f"package: {made.package}")
    out.print(f"picture: {made.picture}")
