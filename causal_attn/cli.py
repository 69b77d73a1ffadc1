"""The command line: thin commands over the public API, each importing what it needs.

Exit codes: 0 all checks passed, 1 a check failed, 2 wrong usage or unreadable input, 3 could not
decide. With ``--json``, JSON alone goes to stdout and everything else to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from causal_attn.errors import CausalAttnError, MissingDependencyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app", "main"]

app = typer.Typer(
    name="causal-attn",
    help="Compile causal attention from PyTorch to ONNX, check it, and run it without PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
out, err = Console(), Console(stderr=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")]
ProviderFlag = Annotated[
    str, typer.Option("--provider", "-p", help="cpu, cuda, tensorrt or openvino.")
]

_EXTRA = {"torch": "export", "onnx": "verify", "matplotlib": "verify", "onnxruntime": "cpu"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; a user's mistake is one sentence on stderr."""
    try:
        app(args=None if arguments is None else list(arguments))
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if not isinstance(error, MissingDependencyError) and top not in _EXTRA:
            raise
        extra = _EXTRA.get(top, "export")
        _fail(f"This command needs {top}: pip install 'causal-attn\\[{extra}]'", 2)
    except CausalAttnError as error:
        _fail(escape(str(error)), error.exit_code)
    except OSError as error:
        _fail(escape(f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")), 2)
    sys.exit(0)


@app.command(epilog="Example: causal-attn demo --out demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where package and picture go.")] = Path(
        "demo"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Export the reference, check it, run three tokens through it, draw the weights."""
    from causal_attn.demo import run_demo
    from causal_attn.tables import check_table, matrix_table, verdict_line

    with _steps() as on_step:
        made = run_demo(folder, on_step)
    if as_json:
        _print_json(made.to_dict())
        return
    out.print(matrix_table(made.output, "output [tokens, features]"))
    out.print(matrix_table(made.weights, "weights [queries, keys]"))
    out.print(check_table(made.certificate.checks, "checks"))
    out.print("verdict:", verdict_line(made.certificate))
    out.print(f"export and checks: {made.export_seconds:.1f} s")
    out.print(f"package: {made.package}")
    out.print(f"picture: {made.picture}")


@app.command(
    epilog="Example: causal-attn export causal_attention -o attention --heads 8 --window 64"
)
def export(
    target: Annotated[
        str, typer.Argument(help="causal_attention, file.py:attribute or module:attribute.")
    ],
    path: Annotated[Path, typer.Option("--out", "-o", help="Folder of the package.")],
    form: Annotated[
        str, typer.Option(help="auto, decomposed, attention, gqa or blocked.")
    ] = "auto",
    provider: Annotated[
        list[str] | None, typer.Option("--provider", "-p", help="One variant each; repeat it.")
    ] = None,
    check_on: Annotated[
        list[str] | None, typer.Option(help="Check here instead of on absent providers.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or float64.")] = None,
    opset: Annotated[int | None, typer.Option(help="Default: the form's oldest.")] = None,
    examples: Annotated[
        list[str] | None,
        typer.Option("--example", help="Example inputs: file.npz or name=file.npy; repeat it."),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option(help="Dynamic axes: x=batch,tokens,_ ; repeat it."),
    ] = None,
    weights: Annotated[bool, typer.Option(help="Whether the reference op returns them.")] = True,
    measure: Annotated[
        bool, typer.Option(help="Whether auto times the forms here or takes a fixed table.")
    ] = True,
    heads: Annotated[int | None, typer.Option(help="Reference op: fixed query heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Reference op: key/value heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Reference op: fixed features.")] = None,
    scale: Annotated[float | None, typer.Option(help="Default 1/sqrt(features).")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens seen, itself included.")] = None,
    softcap: Annotated[float | None, typer.Option(help="Before the mask.")] = None,
    cache: Annotated[str, typer.Option(help="none or dynamic.")] = "none",
    as_json: JsonFlag = False,
) -> None:
    """Export to a checked package; a package that fails a check is not written."""
    with _steps() as on_step:
        on_step("import torch")
        from causal_attn.export import export as run_export
        from causal_attn.spec import AttentionSpec
        from causal_attn.user_code import find_target

        chosen = find_target(target)
        spec: dict[str, Any] = {
            "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "scale": scale,
            "window": window, "softcap": softcap, "cache": None if cache == "none" else cache,
        }  # fmt: skip
        given = {name: value for name, value in spec.items() if value is not None}
        if given and target != "causal_attention":
            raise UsageError(
                f"`{next(iter(given))}` must be left out for a target of your own, which has its "
                "own attention."
            )
        if given:
            chosen = AttentionSpec.from_dict(given)
        package = run_export(
            chosen,
            path,
            form=form,
            providers=provider or ["cpu"],
            check_on=check_on,
            dtype=dtype,
            opset=opset,
            example_inputs=_example_tensors(examples),
            dims=_parse_dims(dims),
            return_weights=weights,
            measure=measure,
            on_step=on_step,
        )
    _show_package(package, as_json)


@app.command(epilog="Example: causal-attn verify demo/causal_attention --json")
def verify(
    path: Annotated[Path, typer.Argument(help="A package, or an .onnx file with a contract.")],
    provider: Annotated[
        str | None, typer.Option("--provider", "-p", help="Default: all that are installed.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run every check again, without PyTorch, on this machine's providers."""
    from causal_attn.tables import check_table, verdict_line
    from causal_attn.verify import verify as run_verify

    with _steps() as on_step:
        report = run_verify(path, provider=provider, on_check=on_step)
    if as_json:
        _print_json(report.to_dict())
    else:
        for one in report.variants:
            out.print(check_table(one.certificate.checks, f"variant {one.variant}"))
            out.print("verdict:", verdict_line(one.certificate))
        for name, reason in report.skipped.items():
            out.print(f"variant {name}: not checked, {reason}")
    raise typer.Exit(report.exit_code)


@app.command(epilog="Example: causal-attn inspect demo/causal_attention")
def inspect(
    path: Annotated[Path, typer.Argument(help="A package, or an .onnx file with a contract.")],
    as_json: JsonFlag = False,
) -> None:
    """Show contract and certificate; nothing is run."""
    from causal_attn.package import open_model, read_package

    if path.is_dir():
        _show_package(read_package(path), as_json)
        return
    from causal_attn.tables import check_table, contract_table, verdict_line

    variant = open_model(path)
    if as_json:
        _print_json(_variant_dict(variant))
        return
    out.print(contract_table(variant.contract))
    if variant.certificate is not None:
        out.print(check_table(variant.certificate.checks, "checks"))
        out.print("verdict:", verdict_line(variant.certificate))


@app.command(epilog="Example: causal-attn run demo/causal_attention inputs.npz -o outputs.npz")
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
    from causal_attn.arrays import read_arrays, write_arrays
    from causal_attn.runtime import load

    arrays = read_arrays(inputs)
    with load(path, provider, accept=accept) as session:
        results = session.run(arrays)
    write_arrays(target, results)
    if as_json:
        _print_json(
            {
                "out": str(target),
                "outputs": {
                    name: {"shape": list(array.shape), "dtype": str(array.dtype)}
                    for name, array in results.items()
                },
            }
        )
        return
    from causal_attn.tables import array_table

    out.print(array_table(results, f"outputs in {target}"))


@app.command(epilog="Example: causal-attn doctor")
def doctor(as_json: JsonFlag = False) -> None:
    """Show versions and providers, what is missing, and the command that mends it."""
    from rich.table import Table

    from causal_attn.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        _print_json(diagnosis.to_dict())
    else:
        table = Table(title="versions", title_justify="left", show_header=False)
        table.add_row("python", diagnosis.python)
        for name, version in diagnosis.versions.items():
            table.add_row(name, version or "not installed")
        table.add_row("providers", ", ".join(str(p) for p in diagnosis.providers) or "none")
        out.print(table)
        for problem in diagnosis.problems:
            out.print(f"[yellow]{escape(problem.message)}[/]\n  {escape(problem.remedy)}")
        if not diagnosis.problems:
            out.print("nothing is missing")


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """A spinner on stderr that names the step under way; plain stdout stays for results."""
    with err.status("start") as status:
        yield lambda step: status.update(escape(step))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"[bold red]error:[/] {message}", soft_wrap=True)
    sys.exit(code)


def _show_package(package: Any, as_json: bool) -> None:
    from causal_attn.tables import contract_table, package_table

    if as_json:
        _print_json(
            {
                "path": str(package.root),
                "name": package.name,
                "variants": [_variant_dict(variant) for variant in package.variants],
            }
        )
        return
    out.print(package_table(package))
    out.print(contract_table(package.variants[0].contract))


def _variant_dict(variant: Any) -> dict[str, Any]:
    certificate = variant.certificate
    return {
        "variant": variant.name,
        "provider": str(variant.provider or variant.ep),
        "contract": json.loads(variant.contract.to_json()),
        "certificate": None if certificate is None else json.loads(certificate.to_json()),
        "passed": certificate is not None and certificate.passed,
    }


def _example_tensors(sources: list[str] | None) -> Any:
    if not sources:
        return None
    import torch

    from causal_attn.arrays import read_arrays

    return {name: torch.from_numpy(array) for name, array in read_arrays(sources).items()}


def _parse_dims(entries: list[str] | None) -> dict[str, list[str | None]] | None:
    if not entries:
        return None
    dims: dict[str, list[str | None]] = {}
    for entry in entries:
        name, separator, axes = entry.partition("=")
        if not separator or not axes:
            raise UsageError(f"`--dims` must look like x=batch,tokens,_ , got {entry!r}.")
        dims[name] = [None if axis in ("_", "") else axis for axis in axes.split(",")]
    return dims
