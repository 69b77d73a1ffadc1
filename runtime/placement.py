"""Which provider runs which node, by ONNX Runtime's own record.

The record is made when the graph is partitioned: nodes that were folded into constants are not in
it, and nodes fused later are in it one by one. ONNX Runtime 1.24 and up keep it.

A session is strict: every node on the provider that was asked for. ``cuda``, ``tensorrt`` and
``webgpu`` have one exception. There ONNX Runtime moves arithmetic on shapes, such as the length
that the mask is built from, to the CPU on purpose, since its result is needed on the host; so
nodes of `SHAPE_OPS`, on ``webgpu`` of `SHAPE_OPS_OF_WEBGPU`, may be on the CPU. The provider has
kernels for each of these for tensors of data, so none of them gets to the CPU because the provider
lacks it. Whatever is on the CPU is in the placement.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from causal_attn.errors import EngineError, ProviderError
from causal_attn.machine.provider import Provider
from causal_attn.machine.release import OLDEST

__all__ = [
    "RECORD_OPTION",
    "SHAPE_OPS",
    "SHAPE_OPS_OF_WEBGPU",
    "PlacedNode",
    "read_placement",
    "require_placement",
]

RECORD_OPTION = "session.record_ep_graph_assignment_info"

SHAPE_OPS = frozenset(
    {
        "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Gather", "Greater",
        "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Mod", "Mul", "Range", "ReduceMax",
        "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators of the default ONNX domain that ONNX Runtime may run on the CPU beside CUDA."""

SHAPE_OPS_OF_WEBGPU = SHAPE_OPS - {"Mod", "Size"} | {"And", "Not", "Sqrt"}
"""The same beside WebGPU, which has no integers of 64 bits: masks made of positions begin there.

``ConstantOfShape`` alone has no kernel on WebGPU; all that it reads is a shape.
"""

_SHAPE_OPS = {
    Provider.CUDA: SHAPE_OPS,
    Provider.TENSORRT: SHAPE_OPS,
    Provider.WEBGPU: SHAPE_OPS_OF_WEBGPU,
}


class PlacedNode(NamedTuple):
    """One node of the graph and where it runs."""

    name: str
    """As in the graph; empty where the graph gives none."""
    op_type: str
    domain: str
    """Empty for the default ONNX domain."""
    provider: str
    """Short name, or ONNX Runtime's name of a provider that `Provider` does not know."""


def read_placement(engine: Any) -> tuple[PlacedNode, ...]:
    """Every node that `engine`, a session made with `RECORD_OPTION`, has assigned.

    Raises:
        EngineError: This ONNX Runtime keeps no record.
    """
    if not hasattr(engine, "get_provider_graph_assignment_info"):
        raise EngineError(
            "ONNX Runtime must keep a record of which provider runs which node, got a version "
            f"before {OLDEST}, which does not. Upgrade it: pip install --upgrade "
            f"'onnxruntime>={OLDEST}'"
        )
    return tuple(
        PlacedNode(node.name, node.op_type, _domain(node.domain), _short_name(subgraph.ep_name))
        for subgraph in engine.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
    )


def require_placement(placement: tuple[PlacedNode, ...], provider: Provider) -> None:
    """Refuse a `placement` with a node elsewhere than on `provider`; see the module for GPUs.

    Raises:
        ProviderError: Naming the nodes, and where they are.
    """
    elsewhere = [
        node
        for node in placement
        if node.provider != provider and not _computes_shapes(node, provider)
    ]
    if not elsewhere:
        return
    kinds = Counter((node.op_type, node.provider) for node in elsewhere)
    listed = ", ".join(f"{count} {op} on {where}" for (op, where), count in kinds.most_common(8))
    names = ", ".join(repr(node.name) for node in elsewhere[:4])
    raise ProviderError(
        f"`provider` must run every node, got {str(provider)!r}, which leaves {len(elsewhere)} of "
        f"{len(placement)}: {listed} (first: {names}). Export a form that {provider} runs whole, "
        "or load on cpu."
    )


def _computes_shapes(node: PlacedNode, provider: Provider) -> bool:
    return (
        node.provider == Provider.CPU
        and not node.domain
        and node.op_type in _SHAPE_OPS.get(provider, ())
    )


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _short_name(ort_name: str) -> str:
    try:
        return str(Provider.parse(ort_name))
    except ProviderError:
        return ort_name
