"""Run models from services: numpy and ONNX Runtime, no torch and no onnx.

::

    from causal_attn.runtime import load

    with load("causal_attention", provider="cpu") as attention:
        output, weights = attention(q, k, v)

`load` refuses what it cannot keep: a provider that is not there, a node that would run elsewhere,
a model that was not checked. A call refuses arrays that the contract does not allow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from causal_attn.runtime.acceptance import Accept
from causal_attn.runtime.binding import Binding
from causal_attn.runtime.cancellation import Cancellation
from causal_attn.runtime.loading import load
from causal_attn.runtime.outputs import Outputs
from causal_attn.runtime.placement import PlacedNode
from causal_attn.runtime.providers import available_providers
from causal_attn.runtime.session import Session

if TYPE_CHECKING:
    from causal_attn.runtime.batcher import Batcher
    from causal_attn.runtime.observed import Call

__all__ = [
    "Accept",
    "Batcher",
    "Binding",
    "Call",
    "Cancellation",
    "Outputs",
    "PlacedNode",
    "Session",
    "available_providers",
    "load",
]

# What not every service needs is imported when it is first used.
_LATER = {"Batcher": "batcher", "Call": "observed"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
