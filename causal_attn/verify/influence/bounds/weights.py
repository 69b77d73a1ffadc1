"""Extents of stored tensors, read where they lie."""

from __future__ import annotations

import math

import numpy as np

from causal_attn.verify.influence.bounds.extent import UNBOUNDED, Extent
from causal_attn.verify.influence.graph import Stored

__all__ = ["of_stored"]

_CHUNK = 1 << 22


def of_stored(stored: Stored) -> Extent:
    """Extent of a stored tensor; no bound where it is packed or holds text."""
    if stored.read is None:
        return UNBOUNDED
    array = stored.read()
    if array.dtype.kind == "O" or array.size == 0:
        return UNBOUNDED if array.size else Extent(0.0, 0.0)
    flat = array.reshape(-1)
    low, high = math.inf, -math.inf
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    if math.isnan(low) or math.isnan(high):
        return UNBOUNDED
    return Extent(low, high, array=array)
