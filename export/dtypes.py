"""The dtypes that attention is exported in."""

from __future__ import annotations

import torch

from causal_attn.errors import UsageError
from causal_attn.export.target import Target

__all__ = ["DTYPES", "float_dtype", "parse_dtype"]

DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    parsed = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if parsed not in DTYPES.values():
        remedy = (
            " ONNX Runtime's CPU provider has no bfloat16 kernels for attention; use float32."
            if dtype in ("bfloat16", torch.bfloat16)
            else ""
        )
        raise UsageError(f"`dtype` must be one of {list(DTYPES)}, got {str(dtype)!r}.{remedy}")
    return parsed


def float_dtype(target: Target) -> torch.dtype:
    """The dtype attention runs in: of the first floating tensor that goes in or is held.

    Raises:
        UsageError: It is one that no provider here has kernels for.
    """
    held = (*target.examples.values(), *target.module.parameters())
    dtype = next((tensor.dtype for tensor in held if tensor.is_floating_point()), torch.float32)
    parsed = parse_dtype(dtype)
    return parsed if parsed is not None else torch.float32
