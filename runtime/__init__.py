"""Run models from services: numpy and ONNX Runtime, no torch and no onnx.

::

    from causal_attn.runtime import load

    with load("causal_attention", provider="cpu") as attention:
        output, weights = attention(q, k, v)

`load` refuses what it cannot keep: a provider that is not there, a node that would run elsewhere,
a model that was not checked. A call refuses arrays that the contract does not allow.
"""

from __future__ import annotations

from causal_attn.runtime.binding import Binding
from causal_attn.runtime.cancellation import Cancellation
from causal_attn.runtime.loading import Accept, load
from causal_attn.runtime.outputs import Outputs
from causal_attn.runtime.placement import PlacedNode
from causal_attn.runtime.providers import available_providers
from causal_attn.runtime.session import Session

__all__ = [
    "Accept",
    "Binding",
    "Cancellation",
    "Outputs",
    "PlacedNode",
    "Session",
    "available_providers",
    "load",
]
