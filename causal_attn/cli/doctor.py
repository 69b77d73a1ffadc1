"""`causal-attn doctor`."""

from __future__ import annotations

from rich.markup import escape

from causal_attn.cli.console import JsonFlag, out, print_json

__all__ = ["doctor"]


def doctor(as_json: JsonFlag = False) -> None:
    """Show versions and providers, what is missing, and the command that mends it."""
    from rich.table import Table

    from causal_attn.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis.to_dict())
        return
    table = Table(title="versions", title_justify="left", show_header=False)
    table.add_row("python", diagnosis.python)
    for name, version in diagnosis.versions.items():
        table.add_row(name, version or "not installed")
    table.add_row("providers", ", ".join(str(p) for p in diagnosis.providers) or "none")
    if diagnosis.adapters:
        table.add_row("webgpu runs on", " or ".join(diagnosis.adapters))
    out.print(table)
    for problem in diagnosis.problems:
        out.print(f"[yellow]to {problem.task}:[/] {escape(problem.what)}")
        out.print(f"  {escape(problem.command)}", soft_wrap=True)
    if not diagnosis.problems:
        out.print("nothing is missing")
