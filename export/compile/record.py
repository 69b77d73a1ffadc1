"""What ``torch.compile(backend="causal_attn")`` did in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CompileReport", "GraphReport", "compile_report", "record"]


@dataclass(frozen=True, kw_only=True)
class GraphReport:
    """One graph that torch.compile captured.

    Attributes:
        frame: torch's number of the function, or of the part of it between two graph breaks.
        provider: Where it was to run.
        inputs: Name to dtype and dims; a dim that is any size has a name.
        weights: How many parameters and buffers go in beside them.
        form: How attention is written; empty if the graph has none that became the op.
        attention: How many attention calls became the op, and why others did not.
        checked: What was checked, with the result, as sentences.
        recompiled: Why the same frame was compiled before and again; empty the first time.
        eager: Why it runs in torch instead, as the caller allowed; empty if it does not.
        refused: Why every call of it raises; empty if it does not.
    """

    frame: str
    provider: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    weights: int = 0
    form: str = ""
    attention: Mapping[str, Any] = field(default_factory=dict)
    checked: tuple[str, ...] = ()
    recompiled: str = ""
    eager: str = ""
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """All graphs of this process, in the order of their compilation."""

    graphs: tuple[GraphReport, ...]

    @property
    def recompiles(self) -> tuple[GraphReport, ...]:
        """Graphs of a frame that had been compiled before; each says why."""
        return tuple(graph for graph in self.graphs if graph.recompiled)

    @property
    def fallbacks(self) -> tuple[GraphReport, ...]:
        """Graphs that run in torch, because ``options={"fallback": True}`` allows it."""
        return tuple(graph for graph in self.graphs if graph.eager)

    @property
    def refusals(self) -> tuple[GraphReport, ...]:
        """Graphs every call of which raises."""
        return tuple(graph for graph in self.graphs if graph.refused)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "graphs": [asdict(graph) for graph in self.graphs],
            "recompiles": len(self.recompiles),
            "fallbacks": len(self.fallbacks),
            "refusals": len(self.refusals),
        }

    def __str__(self) -> str:
        lines = [
            f"{len(self.graphs)} graphs, {len(self.recompiles)} recompiled, "
            f"{len(self.fallbacks)} in torch, {len(self.refusals)} refused"
        ]
        for graph in self.graphs:
            inputs = ", ".join(f"{name} {dims}" for name, dims in graph.inputs.items())
            lines.append(f"frame {graph.frame} on {graph.provider}: {inputs}")
            lines += [f"  {text}" for text in _lines(graph)]
        return "\n".join(lines)


def _lines(graph: GraphReport) -> list[str]:
    lines = []
    if graph.recompiled:
        lines.append(f"recompiled: {graph.recompiled}")
    if graph.form:
        lines.append(f"attention: {graph.attention['attend']} calls, written {graph.form}")
    for reason, count in graph.attention.get("kept", {}).items():
        lines.append(f"attention kept as written: {count} x {reason}")
    lines += [f"checked: {text}" for text in graph.checked]
    if graph.eager:
        lines.append(f"runs in torch: {graph.eager}")
    if graph.refused:
        lines.append(f"refused: {graph.refused}")
    return lines


_GRAPHS: list[GraphReport] = []


def compile_report(*, clear: bool = False) -> CompileReport:
    """Every graph that ``torch.compile(backend="causal_attn")`` got in this process.

    Args:
        clear: Whether to begin a new list; compiled functions stay as they are.
    """
    report = CompileReport(graphs=tuple(_GRAPHS))
    if clear:
        _GRAPHS.clear()
    return report


def record(graph: GraphReport) -> None:
    """Add `graph` to the report."""
    _GRAPHS.append(graph)
