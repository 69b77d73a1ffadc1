"""``torch.arange`` over a dynamic length with whole numbers that are written as floats.

``torch.arange(tokens - 1, -1, -1.0)`` has `tokens` values, which torch.export computes as a float
that is rounded up, and then cannot tell from another length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["WholeSteps"]

_ENDS = ("start", "end", "step")


class WholeSteps(TorchFunctionMode):
    """Inside this mode such floats are integers, and the dtype of the result is what it was."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.arange:
            given = [*args, *(kwargs[name] for name in _ENDS if name in kwargs)]
            floats = [end for end in given if isinstance(end, float)]
            dynamic = any(isinstance(end, torch.SymInt) for end in given)
            if dynamic and floats and all(map(float.is_integer, floats)):
                if kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.get_default_dtype()
                args = tuple(map(_whole, args))
                kwargs |= {name: _whole(kwargs[name]) for name in _ENDS if name in kwargs}
        return func(*args, **kwargs)


def _whole(end: Any) -> Any:
    return int(end) if isinstance(end, float) else end
