"""The worked example: three tokens of two features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["worked_example"]


def worked_example() -> dict[str, NDArray[np.float32]]:
    """``q = k = [[1, 0], [0, 1], [1, 1]]``, ``v = [[2, 0], [0, 4], [2, 2]]``.

    Each is ``[batch=1, heads=1, tokens=3, features=2]``, float32.
    """
    q = np.array([[1, 0], [0, 1], [1, 1]], np.float32)[None, None]
    v = np.array([[2, 0], [0, 4], [2, 2]], np.float32)[None, None]
    return {"q": q, "k": q.copy(), "v": v}
