"""Which part may import which, as data, held against every import statement in the source.

Imports inside functions and under ``TYPE_CHECKING`` count: they are arrows too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "causal_attn": "causal_attn",
    "export": "causal_attn.export",
    "runtime": "causal_attn.runtime",
    "models": "causal_attn.models",
}
"""Where the source lies, and what it is called once installed."""

BASE = {"atomic_file", "errors", "json_text"}

# No part imports the root: its lazy names exist for users.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "atomic_file": {"errors"},
    "json_text": {"errors"},
    "attention": BASE,
    "machine": BASE,
    "models": BASE,
    "picture": BASE,
    "package": BASE | {"attention", "machine"},
    "runtime": BASE | {"attention", "machine", "package"},
    "doctor": BASE | {"machine", "runtime"},
    "verify.node_order": set(),
    "verify.feeds": BASE | {"attention", "package"},
    "verify.influence": BASE | {"package", "verify.node_order"},
    "verify.interface": BASE | {"package", "runtime", "verify.feeds", "verify.influence"},
    "verify.oracle": BASE | {"package", "verify.feeds", "verify.node_order"},
    "verify.compare": BASE,
    "verify.checks": BASE
    | {"machine", "package", "runtime", "verify.compare", "verify.feeds", "verify.influence"}
    | {"verify.interface", "verify.oracle", "verify.subject"},
    "verify.read_model": BASE | {"machine", "package", "verify.node_order"},
    "verify.subject": BASE
    | {"machine", "package", "runtime", "verify.feeds", "verify.influence", "verify.interface"}
    | {"verify.read_model"},
    "verify": BASE
    | {"attention", "machine", "package", "runtime", "verify.checks", "verify.feeds"}
    | {"verify.influence", "verify.interface", "verify.oracle", "verify.page"}
    | {"verify.read_model", "verify.subject"},
    "verify.page": BASE | {"machine", "package", "picture", "verify", "verify.influence"},
    "quantize": BASE
    | {"machine", "package", "runtime", "verify", "verify.feeds", "verify.oracle"}
    | {"verify.subject"},
    "serve": BASE | {"machine", "package", "runtime", "verify.feeds"},
    "deploy": BASE | {"attention", "machine", "package", "serve", "verify.feeds"},
    "timing": BASE | {"machine", "runtime", "verify.feeds"},
    "export": BASE
    | {"attention", "machine", "package", "runtime", "timing", "verify", "verify.checks"}
    | {"verify.compare", "verify.feeds", "verify.interface", "verify.oracle", "verify.subject"},
    "bench": BASE | {"attention", "export", "machine", "package", "picture", "runtime", "timing"},
    "demo": BASE | {"attention", "export", "package", "picture", "root", "runtime"},
    "root": BASE | {"attention", "machine"},
}
"""Part to the parts that it may import. The command line, ``cli``, may import all of them."""

WITH_TORCH = {"attention.reference", "attention.operator"}
"""Modules with torch in them: for ``export``, ``bench``, ``demo``, ``cli`` and the root alone."""


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of ours by its installed name."""
    for folder, name in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "causal_attn" and parts[0] in FOLDERS:
                continue
            yield ".".join((name, *(part for part in parts if part != "__init__"))), path


MODULES = dict(modules())


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that the source at `path` imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("causal_attn"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("causal_attn"):
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in MODULES else str(node.module)


def part(module: str) -> str:
    """The part of `MAY_IMPORT` that `module` belongs to: the longest name that fits."""
    name = module.removeprefix("causal_attn").removeprefix(".")
    fitting = [known for known in MAY_IMPORT if f"{name}.".startswith(f"{known}.")]
    return max(fitting, key=len, default=name.partition(".")[0] or "root")


ARROWS = {
    (module, target)
    for module, path in MODULES.items()
    for target in imported(path)
    if part(target) != part(module)
}


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(name: str) -> None:
    outside = sorted(
        f"{module} imports {target}"
        for module, target in ARROWS
        if part(module) == name and part(target) not in MAY_IMPORT[name]
    )
    assert outside == []


def test_every_module_belongs_to_a_part() -> None:
    assert {part(module) for module in MODULES} == {*MAY_IMPORT, "cli"}


def test_the_arrows_lead_nowhere_in_a_circle() -> None:
    waiting = {name: set(targets) for name, targets in MAY_IMPORT.items()}
    # The root's names are lazy, and the report page is the last step of the part it stands in.
    waiting["demo"].discard("root")
    waiting["verify"].discard("verify.page")
    while free := {name for name, targets in waiting.items() if not targets}:
        waiting = {name: targets - free for name, targets in waiting.items() if name not in free}
    assert waiting == {}


def test_torch_stays_behind_the_exporter() -> None:
    free = {"export", "bench", "demo", "cli", "root", "attention"}
    wrong = sorted(
        f"{module} imports {target}"
        for module, target in ARROWS
        if target.removeprefix("causal_attn.") in WITH_TORCH and part(module) not in free
    )
    assert wrong == []
