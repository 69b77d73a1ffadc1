"""What can be read off the file and the session: inputs that nothing reads, nodes elsewhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from causal_attn.certificate import Check
from causal_attn.errors import PackageError
from causal_attn.runtime import Session

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["check_inputs_are_read", "check_placement"]


def check_inputs_are_read(path: Path) -> Check:
    """Every graph input must reach an output: torch.onnx drops one of two aliased inputs.

    Raises:
        PackageError: `path` is not an ONNX model.
    """
    # Here, so that the checks on a session run where onnx is not installed.
    import onnx

    try:
        graph = onnx.load(path, load_external_data=False).graph
    # onnx passes protobuf's own exception through, which has no public name to catch.
    except Exception as error:  # noqa: BLE001
        raise PackageError(f"`path` must be an ONNX model, got {path.name}: {error}.") from None
    alive = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if alive.intersection(node.output):
            alive.update(_read_by(node))
    dead = sorted(
        value.name
        for value in graph.input
        if value.name not in alive and value.name not in {t.name for t in graph.initializer}
    )
    return Check(
        name="inputs are read",
        passed=not dead,
        detail=f"{dead} reach no output" if dead else "every input reaches an output",
    )


def check_placement(session: Session) -> Check:
    """Where every node runs, by ONNX Runtime's own record.

    The runtime has refused a session with a node elsewhere already, but for integer arithmetic on
    shapes that ONNX Runtime keeps on the host beside a GPU; those are counted here.
    """
    elsewhere = Counter(
        f"{node.op_type} on {node.provider}"
        for node in session.placement
        if node.provider != session.provider
    )
    here = len(session.placement) - elsewhere.total()
    detail = f"{here} of {len(session.placement)} nodes on {session.provider}"
    if elsewhere:
        detail += "; shapes: " + ", ".join(f"{n} {what}" for what, n in elsewhere.most_common())
    return Check(
        name="placement",
        passed=here > 0,
        detail=detail,
        figures={"nodes": len(session.placement), "elsewhere": dict(elsewhere)},
        provider=str(session.provider),
    )


def _read_by(node: NodeProto) -> set[str]:
    """Names `node` reads, in its subgraphs too."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _read_by(inner)
            names |= {value.name for value in graph.output}
    return names
