"""`causal-attn sign`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from causal_attn.cli.console import JsonFlag, out, print_json

__all__ = ["sign"]


def sign(
    path: Annotated[Path, typer.Argument(help="A package, or an .onnx file with a certificate.")],
    key: Annotated[
        Path, typer.Option(help="PEM file of an ed25519 private key: openssl genpkey.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Sign every model of a package, for load(..., trust=KEY)."""
    from causal_attn.package import check_certificate, open_model, read_package
    from causal_attn.package.signature import private_key
    from causal_attn.package.signature import sign as sign_variant

    private = private_key(key)
    variants = read_package(path).variants if path.is_dir() else (open_model(path),)
    # All or none: a package of which a part is signed would look signed.
    for variant in variants:
        check_certificate(variant)
    written = [str(sign_variant(variant, private)) for variant in variants]
    public = private.public_key().public_bytes_raw().hex()
    if as_json:
        print_json({"public_key": public, "signatures": written})
        return
    for file in written:
        out.print(file, soft_wrap=True, highlight=False)
    out.print(f"signed by {public}", soft_wrap=True, highlight=False)
