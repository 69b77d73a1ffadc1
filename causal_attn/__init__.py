"""Causal attention from PyTorch to ONNX, proved causal, run without PyTorch.

Importing this package imports neither torch nor onnx nor onnxruntime. The names that need torch
(`causal_attention`, `CausalAttention`) are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import CausalAttnError, MissingDependencyError
from causal_attn.machine.provider import Provider

if TYPE_CHECKING:
    from causal_attn.attention.reference import CausalAttention, causal_attention

__all__ = [
    "AttentionSpec",
    "CacheKind",
    "CausalAttention",
    "CausalAttnError",
    "Provider",
    "causal_attention",
]

__version__ = "0.1.0"

_NEED_TORCH = ("CausalAttention", "causal_attention")


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        reference = import_module("causal_attn.attention.reference")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f"`causal_attn.{name}` needs torch, which is not installed. "
            "Install it with: pip install 'causal-attn[export]'",
            name="torch",
        ) from error
    return getattr(reference, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_TORCH})
