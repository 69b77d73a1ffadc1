"""Where every node runs, as a check."""

from __future__ import annotations

from collections import Counter
from typing import Any

from causal_attn.machine.adapter import webgpu_adapters
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.runtime import Session
from causal_attn.verify.checks.trial import Trial

__all__ = ["check_placement", "count_placement"]


def count_placement(session: Session) -> dict[str, int]:
    """``"MatMul on cpu"`` to the number of such nodes, most first."""
    counted = Counter(f"{node.op_type} on {node.provider}" for node in session.placement)
    return dict(counted.most_common())


def check_placement(trial: Trial) -> Check:
    """Where every node runs, by ONNX Runtime's own record.

    The runtime has refused a session with a node elsewhere already, but for integer arithmetic on
    shapes that ONNX Runtime keeps on the host beside a GPU; those are counted here.
    """
    session = trial.session
    elsewhere = Counter(
        f"{node.op_type} on {node.provider}"
        for node in session.placement
        if node.provider != session.provider
    )
    here = len(session.placement) - elsewhere.total()
    detail = f"{here} of {len(session.placement)} nodes on {session.provider}"
    figures: dict[str, Any] = {"nodes": len(session.placement), "elsewhere": dict(elsewhere)}
    if session.provider is Provider.WEBGPU:
        # Kernels are made for the adapter: what is right on one can be wrong on another.
        figures["adapter"] = list(webgpu_adapters())
        detail += f" ({' or '.join(webgpu_adapters()) or 'an adapter that is not named'})"
    if elsewhere:
        detail += "; shapes: " + ", ".join(f"{n} {what}" for what, n in elsewhere.most_common())
    return trial.result("placement", here > 0, detail, **figures)
