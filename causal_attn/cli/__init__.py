"""The command line: thin commands over the public API, each importing what it needs.

Exit codes: 0 all checks passed, 1 a check failed, 2 wrong usage or unreadable input, 3 could not
decide. With ``--json``, JSON alone goes to stdout and everything else to stderr.
"""

from __future__ import annotations

import contextlib
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
    from causal_attn.cli.tables import check_table, matrix_table, verdict_line
    from causal_attn.demo import run_demo

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
    cache: Annotated[str, typer.Option(help="none, dynamic or static.")] = "none",
    as_json: JsonFlag = False,
) -> None:
    """Export to a checked package; a package that fails a check is not written."""
    with _steps() as on_step:
        on_step("import torch")
        from causal_attn.attention.spec import AttentionSpec
        from causal_attn.cli.find_target import find_target
        from causal_attn.export import export as run_export

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


@app.command(epilog="Example: causal-attn verify model.onnx --report report --json")
def verify(
    path: Annotated[Path, typer.Argument(help="A package, or any .onnx file.")],
    provider: Annotated[
        str | None, typer.Option("--provider", "-p", help="Default: all that are installed.")
    ] = None,
    tokens_axis: Annotated[
        list[str] | None,
        typer.Option(help="Where the tokens lie, if names do not tell: input_ids=1; repeat it."),
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(help="Output to examine; default all; repeat it.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for a page with pictures of what was found.")
    ] = None,
    certify: Annotated[
        bool,
        typer.Option("--certify", help="Write the certificate into the package or model."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Prove, probe and compare a graph, without PyTorch: is it causal, is it right?"""
    from causal_attn.cli.tables import check_table, verdict_line
    from causal_attn.verify import verify as run_verify
    from causal_attn.verify import write_certificates

    with _steps() as on_step:
        found = run_verify(
            path,
            provider=provider,
            tokens_axis=_parse_axes(tokens_axis),
            outputs=output,
            on_check=on_step,
        )
        page = None
        if report is not None:
            from causal_attn.verify.page import write_page

            page = write_page(found, report)
        certified = write_certificates(found) if certify else None
    if as_json:
        _print_json(found.to_dict() | ({} if certified is None else {"certified": certified}))
    else:
        for one in found.variants:
            out.print(check_table(one.certificate.checks, f"{one.variant} on {one.provider}"))
            if one.leak is not None:
                out.print(f"leak: {escape(str(one.leak))}")
                for place in one.leak.path:
                    out.print(f"  {escape(place)}")
            for sentence in one.not_checked:
                out.print(f"not checked: {escape(sentence)}")
            out.print("verdict:", verdict_line(one.certificate))
        for name, reason in found.skipped.items():
            out.print(f"variant {name}: not run, {reason}")
        if page is not None:
            out.print(f"report: {page}")
        if certified is not None:
            out.print("certified" if certified else "not certified: a check did not pass")
    raise typer.Exit(found.exit_code)


@app.command(epilog="Example: causal-attn inspect demo/causal_attention")
def inspect(
    path: Annotated[Path, typer.Argument(help="A package, or an .onnx file with a contract.")],
    as_json: JsonFlag = False,
) -> None:
    """Show contract and certificate; nothing is run."""
    from causal_attn.cli.tables import check_table, contract_notes, contract_table, verdict_line
    from causal_attn.package import open_model, read_package

    if path.is_dir():
        package = read_package(path)
        _show_package(package, as_json)
        for variant in package.variants if not as_json else ():
            if variant.certificate is not None:
                out.print(check_table(variant.certificate.checks, f"checks of {variant.name}"))
        return
    variant = open_model(path)
    if as_json:
        _print_json(_variant_dict(variant))
        return
    out.print(contract_table(variant.contract))
    for note in contract_notes(variant.contract):
        out.print(escape(note))
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
    from causal_attn.cli.array_files import read_arrays, write_arrays
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
    from causal_attn.cli.tables import array_table

    out.print(array_table(results, f"outputs in {target}"))


@app.command(epilog="Example: causal-attn bench --tokens 16,128,1024 --form attention --json")
def bench(
    prefill: Annotated[bool, typer.Option("--prefill", help="Time whole sequences.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Time one token over a cache.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Peak memory that a prefill adds.")
    ] = False,
    tokens: Annotated[
        str | None, typer.Option(help="Lengths: 16,32,64 ; with --decode, tokens in the cache.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences; default 1.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads; default 16, decode 32.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Default as many as heads; decode a quarter.")
    ] = None,
    head_dim: Annotated[int | None, typer.Option(help="Default 64, decode 128.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    system: Annotated[
        list[str] | None, typer.Option(help="Default: all; repeat it. Ratios need torch.")
    ] = None,
    package: Annotated[
        Path | None, typer.Option(help="A package; default: exported on the spot.")
    ] = None,
    form: Annotated[str, typer.Option(help="Of the export on the spot.")] = "auto",
    forms: Annotated[
        bool, typer.Option("--forms", help="Beside torch, each form alone; nothing else.")
    ] = False,
    cache: Annotated[
        str, typer.Option(help="Of the export, to decode: static or dynamic.")
    ] = "static",
    provider: ProviderFlag = "cpu",
    rounds: Annotated[int, typer.Option(help="Turns of each system in each case.")] = 7,
    plot: Annotated[Path | None, typer.Option(help="Draw time and ratios to this PNG.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure packages against torch, torch.compile, torch.onnx and the machine's own limits.

    Without a part or a shape, all parts run on their standing grid, which takes minutes; a shape
    alone means --prefill. Exit code 3: nothing could be measured.
    """
    from causal_attn.bench import FORM_SYSTEMS, SYSTEMS, make_plan, run_bench
    from causal_attn.bench.plot import draw_bench
    from causal_attn.bench.table import bench_tables

    plan = make_plan(
        prefill=prefill, decode=decode, memory=memory, tokens=_parse_lengths(tokens), batch=batch,
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype,
    )  # fmt: skip
    if forms and system:
        raise UsageError("`--forms` must be given without `--system`, got both.")
    systems = system or list(SYSTEMS)
    if forms:
        systems = [*list(SYSTEMS)[:2], *FORM_SYSTEMS]
    with _progress() as on_progress:
        report = run_bench(
            plan.cases,
            memory=plan.memory,
            systems=systems,
            provider=provider,
            package=package,
            form=form,
            cache=cache,
            rounds=rounds,
            on_progress=on_progress,
        )
    if plot is not None and report.cases:
        draw_bench(report, plot)
    if as_json:
        _print_json(report.to_dict())
    else:
        for part in bench_tables(report):
            out.print(part)
    if len(report.cases) < len(plan.cases):
        raise typer.Exit(3)


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
            out.print(f"[yellow]to {problem.task}:[/] {escape(problem.what)}")
            out.print(f"  {escape(problem.command)}", soft_wrap=True)
        if not diagnosis.problems:
            out.print("nothing is missing")


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """A spinner on stderr that names the step under way.

    What a user's own code prints meanwhile goes there too: stdout is for results.
    """
    with err.status("start") as status, contextlib.redirect_stdout(sys.stderr):
        yield lambda step: status.update(escape(step))


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr with the step under way."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("start")
        yield lambda done, total, words: bar.update(
            task, completed=done, total=total, description=escape(words)
        )


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"[bold red]error:[/] {message}", soft_wrap=True)
    sys.exit(code)


def _show_package(package: Any, as_json: bool) -> None:
    from causal_attn.cli.tables import contract_notes, contract_table, package_table

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
    for note in contract_notes(package.variants[0].contract):
        out.print(escape(note))


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

    from causal_attn.cli.array_files import read_arrays

    return {name: torch.from_numpy(array) for name, array in read_arrays(sources).items()}


def _parse_axes(entries: list[str] | None) -> dict[str, int] | None:
    axes = {}
    for entry in entries or ():
        name, separator, axis = entry.rpartition("=")
        if not separator or not (axis.isascii() and axis.isdigit()):
            raise UsageError(f"`--tokens-axis` must look like input_ids=1, got {entry!r}.")
        axes[name] = int(axis)
    return axes or None


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


def _parse_lengths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"`--tokens` must be lengths with commas between, like 16,32 , got {text!r}."
        ) from None
