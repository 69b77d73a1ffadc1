"""Whether every input of a graph has a part in its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from causal_attn.package.certificate import Check

if TYPE_CHECKING:
    import onnx

    from causal_attn.verify.subject import Subject

__all__ = ["check_inputs_are_read"]


def check_inputs_are_read(subject: Subject) -> Check:
    """Every graph input must reach an output: torch.onnx drops one of two aliased inputs."""
    graph = subject.model.graph
    alive = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if alive.intersection(node.output):
            alive.update(_read_by(node))
    stored = {tensor.name for tensor in graph.initializer}
    dead = sorted({value.name for value in graph.input} - alive - stored)
    return Check(
        name="inputs are read",
        passed=not dead,
        detail=f"{dead} reach no output" if dead else "every input reaches an output",
    )


def _read_by(node: onnx.NodeProto) -> set[str]:
    """Names `node` reads, in its subgraphs too."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _read_by(inner)
            names |= {value.name for value in graph.output}
    return names
