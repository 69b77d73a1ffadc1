"""`causal-attn quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from causal_attn.cli.console import JsonFlag, out, steps
from causal_attn.cli.flags import parse_lengths

__all__ = ["quantize"]


def quantize(
    package: Annotated[Path, typer.Argument(help="A certified package.")],
    path: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new package.")],
    bits: Annotated[int, typer.Option(help="Of a weight: 4 or 8.")] = 4,
    block_size: Annotated[
        int, typer.Option(help="Weights that share a scale: 16, 32, 64, 128 or 256.")
    ] = 32,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens to check at: 1,2,33 ; default 1 to 257.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a package with weights of 4 or 8 bits, checked like any other; no PyTorch."""
    # Raises OSError for a mistyped path, before onnx is imported.
    package.stat()
    tokens = parse_lengths(lengths, "--lengths")

    from causal_attn.cli.package_view import show_package
    from causal_attn.quantize import quantize as run_quantize

    with steps() as on_step:
        made = run_quantize(
            package, path, bits=bits, block_size=block_size, lengths=tokens, on_step=on_step
        )
    show_package(made, as_json)
    certificate = made.variants[0].certificate
    if certificate is not None and not as_json:
        out.print(certificate.checks[-1].detail, markup=False)
