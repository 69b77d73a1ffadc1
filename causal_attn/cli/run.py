"""`causal-attn run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from causal_attn.cli.console import JsonFlag, ProviderFlag, out, print_json

__all__ = ["run"]


def run(
    path: Annotated[Path, typer.Argument(help="A package, or an .onnx file with a contract.")],
    inputs: Annotated[
        list[str], typer.Argument(help="file.npz, name=file.npy, or file.npy named as the input.")
    ],
    target: Annotated[Path, typer.Option("--out", "-o", help="The .npz to write.")],
    provider: ProviderFlag = "cpu",
    accept: Annotated[str, typer.Option(help="certified or unverified.")] = "certified",
    as_json: JsonFlag = False,
) -> None:
    """Run arrays through a package."""
    # Raises OSError for a mistyped path, before ONNX Runtime is imported.
    path.stat()

    from causal_attn.cli.array_files import read_arrays, write_arrays

    arrays = read_arrays(inputs)

    from causal_attn.runtime import load

    with load(path, provider, accept=accept) as session:
        results = session.run(arrays)
    write_arrays(target, results)
    if as_json:
        outputs = {
            name: {"shape": list(array.shape), "dtype": str(array.dtype)}
            for name, array in results.items()
        }
        print_json({"out": str(target), "outputs": outputs})
        return
    from causal_attn.cli.tables import array_table

    out.print(array_table(results, f"outputs in {target}"))
