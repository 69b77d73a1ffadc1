"""`causal-attn deploy`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from causal_attn.cli.console import ProviderFlag
from causal_attn.cli.console import out as console
from causal_attn.errors import UsageError

__all__ = ["BatchingFlags", "ServiceFlags", "deploy"]

_ENGINES = ("triton", "kserve")


@dataclass(frozen=True)
class BatchingFlags:
    """Of Triton: where the certificate says that sequences are independent."""

    max_batch: Annotated[int, typer.Option(help="Triton: most sequences of a joined call.")] = 16
    delay_seconds: Annotated[
        float, typer.Option(help="Triton: that a request may wait for others.")
    ] = 0.002
    max_waiting: Annotated[int, typer.Option(help="Triton: one more is refused.")] = 256
    seconds: Annotated[float, typer.Option(help="Triton: that a request may wait.")] = 60.0
    instances: Annotated[int, typer.Option(help="Triton: sessions on each device.")] = 1


@dataclass(frozen=True)
class ServiceFlags:
    """Of KServe: of the cluster, as against the package."""

    storage_uri: Annotated[
        str | None, typer.Option(help="KServe: where the package will lie, s3://… or pvc://…")
    ] = None
    image: Annotated[str, typer.Option(help="KServe: that the container becomes.")] = (
        "causal-attn:latest"
    )
    min_replicas: Annotated[int, typer.Option(help="KServe: 0 lets the last one go.")] = 1
    max_replicas: Annotated[int, typer.Option(help="KServe: at least the fewest.")] = 1


def deploy(
    package: Annotated[str, typer.Argument(help="PATH, or NAME=PATH as clients call it.")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    engine: Annotated[str, typer.Option("--for", help="triton or kserve.")],
    provider: ProviderFlag = "cpu",
    *,
    accept: Annotated[str, typer.Option(help="certified or unverified.")] = "certified",
    batching: BatchingFlags,
    service: ServiceFlags,
) -> None:
    """Write what others need to run a package: a Triton repository, or a KServe service."""
    if engine not in _ENGINES:
        raise UsageError(f"`engine` must be one of {list(_ENGINES)}, got {engine!r}.")

    from causal_attn.deploy.place import require_free_place
    from causal_attn.deploy.source import open_source

    require_free_place(out)
    source = open_source(package, provider=provider, accept=accept)
    if source.root is not None and source.root.resolve() in out.resolve().parents:
        raise UsageError(f"`out` must not lie inside the package, got {str(out)!r}.")

    if engine == "kserve":
        from causal_attn.deploy.kserve import Service, write_kserve

        if service.storage_uri is None:
            raise UsageError(
                "`--storage-uri` must say where the package will lie, such as pvc://models/llama."
            )
        written = write_kserve(source, out, Service(**asdict(service)))
    else:
        from causal_attn.deploy.triton import write_triton
        from causal_attn.deploy.triton_config import Batching

        written = write_triton(source, out, batching=Batching(**asdict(batching)))
    console.print(str(written), soft_wrap=True, highlight=False)
