"""`causal-attn verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from causal_attn.cli.console import JsonFlag, out, print_json, steps
from causal_attn.cli.flags import parse_axes, parse_lengths

if TYPE_CHECKING:
    from causal_attn.verify import Report
    from causal_attn.verify.influence.crossed import Crossed

__all__ = ["verify"]


# Each parameter is a flag of the command line.
def verify(
    path: Annotated[Path, typer.Argument(help="A package, or any .onnx file.")],
    provider: Annotated[
        str | None, typer.Option("--provider", "-p", help="Default: all that are installed.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens to run at: 1,2,33 ; default 1 to 257.")
    ] = None,
    tokens_axis: Annotated[
        list[str] | None,
        typer.Option(help="Where the tokens lie, if names do not tell: input_ids=1; repeat it."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", help="Output to examine; default all; repeat it."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for a page with pictures of what was found.")
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option(help="FILE.npz for the two inputs and the row that show a leak."),
    ] = None,
    certify: Annotated[
        bool,
        typer.Option("--certify", help="Write the certificate into the package or model."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Prove, probe and compare a graph, without PyTorch: is it causal, is it right?"""
    # Raises OSError for a mistyped path, before onnx is imported.
    path.stat()
    axes, tokens = parse_axes(tokens_axis), parse_lengths(lengths, "--lengths")

    from causal_attn.verify import verify as run_verify
    from causal_attn.verify import write_certificates

    with steps() as on_step:
        found = run_verify(
            path,
            provider=provider,
            lengths=tokens,
            tokens_axis=axes,
            outputs=outputs,
            on_check=on_step,
        )
        page = None
        if report is not None:
            from causal_attn.verify.page import write_page

            page = write_page(found, report)
        shown = _write_witness(found, witness) if witness is not None else False
        certified = write_certificates(found) if certify else None
    if as_json:
        print_json(found.to_dict() | ({} if certified is None else {"certified": certified}))
    else:
        _show(found)
        if page is not None:
            out.print(f"report: {page}")
        if witness is not None:
            out.print(f"witness: {witness}" if shown else "witness: no run shows a leak")
        if certified is not None:
            out.print("certified" if certified else "not certified: a check did not pass")
    raise typer.Exit(found.exit_code)


def _write_witness(found: Report, path: Path) -> bool:
    """Whether there is a witness, whose arrays are in the file then."""
    from causal_attn.cli.array_files import write_arrays

    arrays = next((one.witness.arrays() for one in found.variants if one.witness), None)
    if arrays is not None:
        write_arrays(path, arrays, "--witness")
    return arrays is not None


def _show_masks(crossed: Crossed) -> None:
    """What the node that crosses positions lets through, beside what it should."""
    past = f", {crossed.past} past" if crossed.past else ""
    out.print(
        f"what that node lets through ({crossed.tokens} tokens{past}); a line is a row, X the "
        "future:"
    )
    for line in crossed.lines():
        out.print(f"   {escape(line).replace('X', '[bold red]X[/]')}", highlight=False)


def _show(found: Report) -> None:
    from causal_attn.cli.tables import check_table, verdict_line

    for one in found.variants:
        out.print(check_table(one.certificate.checks, f"{one.label} on {one.provider}"))
        if one.leak is not None:
            out.print(f"leak: {escape(str(one.leak))}")
            for at, place in enumerate(one.leak.path):
                mark = "[bold red]![/]" if at == one.leak.crossing else " "
                out.print(f" {mark} {escape(place)}")
            if one.leak.crossed is not None:
                _show_masks(one.leak.crossed)
        if one.witness is not None:
            out.print(f"witness: {escape(str(one.witness))}")
        for sentence in one.not_checked:
            out.print(f"not checked: {escape(sentence)}")
        out.print("verdict:", verdict_line(one.certificate))
    for name, reason in found.skipped.items():
        out.print(f"variant {name}: not run, {reason}")
