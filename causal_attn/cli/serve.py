"""`causal-attn serve`."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from causal_attn.cli.console import ProviderFlag, err
from causal_attn.errors import UsageError

__all__ = ["AddressFlags", "LimitFlags", "serve"]

_TOKEN = "CAUSAL_ATTN_TOKEN"


@dataclass(frozen=True)
class AddressFlags:
    """Where the server listens."""

    host: Annotated[str, typer.Option(help="The default is this machine alone.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Of HTTP; 0 takes a free one.")] = 8080
    grpc_port: Annotated[int, typer.Option(help="Of gRPC; 0 takes a free one.")] = 8081


@dataclass(frozen=True)
class LimitFlags:
    """What one request may ask for."""

    max_request_bytes: Annotated[int, typer.Option(help="Of one request.")] = 64 << 20
    max_tokens: Annotated[int, typer.Option(help="Of a prompt or a call with tensors.")] = 65_536
    max_bytes: Annotated[int, typer.Option(help="Of its inputs and outputs.")] = 1 << 30
    max_new_tokens: Annotated[int, typer.Option(help="Of one answer.")] = 4_096
    max_running: Annotated[int, typer.Option(help="At a time, for each model.")] = 16
    max_waiting: Annotated[int, typer.Option(help="One more gets 503.")] = 64
    batch_delay_seconds: Annotated[
        float | None, typer.Option(help="Join calls that come within it; default: each alone.")
    ] = None
    seconds: Annotated[float, typer.Option(help="Until a request is ended.")] = 60.0
    grace_seconds: Annotated[float, typer.Option(help="From SIGTERM to the end.")] = 30.0


def serve(
    packages: Annotated[
        list[str], typer.Argument(help="Packages: PATH, or NAME=PATH as clients call it.")
    ],
    provider: ProviderFlag = "cpu",
    *,
    accept: Annotated[str, typer.Option(help="certified or unverified.")] = "certified",
    threads: Annotated[int | None, typer.Option(help="Of one call; default: all cores.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"A file with the token that clients must send; or ${_TOKEN}."),
    ] = None,
    address: AddressFlags,
    limits: LimitFlags,
) -> None:
    """Serve packages over HTTP and gRPC: Open Inference Protocol v2, and OpenAI's for text."""
    from causal_attn.serve.named_paths import named_paths
    from causal_attn.serve.settings import Address, Limits

    paths = named_paths(packages)
    for path in paths.values():
        # Raises OSError for a mistyped path, before anything is loaded.
        path.stat()
    where, limited = Address(**asdict(address)), Limits(**asdict(limits))
    token = _token(token_file)

    from causal_attn.serve.loading import load_models
    from causal_attn.serve.server import serve as run

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("causal_attn.serve").addHandler(handler)
    err.print(f"[dim]loading {', '.join(paths)}[/]", soft_wrap=True)
    models = load_models(paths, provider=provider, accept=accept, threads=threads, limits=limited)
    run(models, address=where, limits=limited, token=token)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_TOKEN)
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not text:
        raise UsageError("`token_file` must have the token in it, got an empty file.")
    return text
