"""Rows of outputs along their token axis, and sizes in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.contract import TensorContract
from causal_attn.verify.feeds.feeder import Feeder, Sizes

__all__ = ["HUGE", "SMALL", "Results", "in_words", "rows_of", "same_row"]

SMALL, HUGE = 0.1, 1e6
"""Amounts by which probes change inputs: finite, since 0 * NaN is NaN in graphs that are right."""

Results = Mapping[str, NDArray[Any]]


def in_words(sizes: Sizes) -> str:
    """``batch=2, tokens=13``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def rows_of(feeder: Feeder, tensor: TensorContract, results: Results) -> NDArray[Any]:
    """Of an output that `Feeder.watched` names, with the token axis first."""
    axis = feeder.token_axis(tensor)
    assert axis is not None
    return np.moveaxis(results[tensor.name], axis, 0)


def same_row(feeder: Feeder, base: Results, changed: Results, tokens: int, position: int) -> bool:
    """Whether the row of a new token is bitwise equal in every watched output."""
    for tensor in feeder.watched():
        old, new = rows_of(feeder, tensor, base), rows_of(feeder, tensor, changed)
        row = len(old) - tokens + position
        if old[row].tobytes() != new[row].tobytes():
            return False
    return True
