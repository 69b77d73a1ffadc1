"""What the command line shows: checks, contracts, arrays and diagnoses as rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from causal_attn.machine.release import OLDEST
from causal_attn.package import Package
from causal_attn.package.certificate import Certificate, Check
from causal_attn.package.contract import Contract

__all__ = [
    "array_table",
    "check_table",
    "contract_notes",
    "contract_table",
    "matrix_table",
    "package_table",
    "verdict_line",
]


def verdict_line(certificate: Certificate) -> Text:
    """The verdict, in the colour of whether the certificate stands."""
    text = Text(str(certificate.verdict), style="bold green" if certificate.passed else "bold red")
    bound = certificate.score_bound
    wanted = [*([] if bound is None else [f"|score| <= {bound:.3g}"]), *certificate.conditions]
    if wanted:
        text.append(f" while {' and '.join(wanted)}", style="default")
    return text


def check_table(checks: Iterable[Check], title: str) -> Table:
    """One row a check."""
    table = Table(title=title, title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("on", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("what was seen")
    words = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[yellow]undecided[/]"}
    for check in checks:
        table.add_row(check.name, check.provider or "file", words[check.passed], check.detail)
    return table


def contract_table(contract: Contract) -> Table:
    """Inputs and outputs."""
    table = Table(title=f"form {contract.form}, opset {contract.opset}", title_justify="left")
    for heading in ("", "name", "dtype", "dims"):
        table.add_column(heading)
    for kind, tensors in (("in", contract.inputs), ("out", contract.outputs)):
        for tensor in tensors:
            dims = ", ".join(str(dim) for dim in tensor.dims)
            table.add_row(kind, tensor.name, tensor.dtype, Text(f"[{dims}]"))
    return table


def contract_notes(contract: Contract) -> list[str]:
    """In words: how the form was chosen, what of a module became the op, what the graph needs."""
    notes = []
    if rule := contract.choice.get("rule"):
        notes.append(f"form chosen by: {rule}")
    if captured := contract.choice.get("captured"):
        notes.append(f"attention calls in this form: {captured['attend']}")
        notes += [f"kept as written: {count} x {why}" for why, count in captured["kept"].items()]
    if contract.onnxruntime != OLDEST:
        notes.append(f"needs ONNX Runtime {contract.onnxruntime} or newer")
    return notes


def package_table(package: Package) -> Table:
    """The variants of a package."""
    table = Table(title=f"{package.name} in {package.root}", title_justify="left")
    for heading in ("variant", "provider", "form", "opset", "verdict", "checked on"):
        table.add_column(heading)
    for variant in package.variants:
        certificate = variant.certificate
        judged = (
            sorted({c.provider for c in certificate.checks if c.provider}) if certificate else []
        )
        table.add_row(
            variant.name,
            str(variant.provider or variant.ep),
            variant.contract.form,
            str(variant.contract.opset),
            verdict_line(certificate) if certificate else Text("not checked", style="red"),
            ", ".join(judged),
        )
    return table


def array_table(arrays: Mapping[str, NDArray[Any]], title: str) -> Table:
    """Shape, dtype and range of arrays."""
    table = Table(title=title, title_justify="left")
    for heading in ("name", "dtype", "shape", "least", "greatest"):
        table.add_column(heading)
    for name, array in arrays.items():
        least, greatest = (array.min(), array.max()) if array.size else ("", "")
        table.add_row(
            name, str(array.dtype), Text(str(list(array.shape))), f"{least}", f"{greatest}"
        )
    return table


def matrix_table(matrix: NDArray[Any], title: str) -> Table:
    """A small matrix, one row a token."""
    table = Table(title=title, title_justify="left", show_header=False)
    for row in matrix:
        table.add_row(*(f"{value:.4f}" for value in row))
    return table
