"""An ONNX function that a form calls, and what it needs of ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

from causal_attn.machine.release import OLDEST

__all__ = ["GraphFunction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFunction:
    """Nodes under a name in the domain ``causal_attn``.

    Attributes:
        text: In ONNX's text syntax (https://onnx.ai/onnx/repo-docs/Syntax.html).
        onnxruntime: ``major.minor`` of the oldest ONNX Runtime that runs its nodes.
    """

    text: str
    onnxruntime: str = OLDEST
