"""``x.data`` as ``x.detach()``: torch.export does not see through the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["DataAsDetached"]


class DataAsDetached(TorchFunctionMode):
    """Inside this mode the data of a tensor are the tensor itself, without a gradient."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Not `is`: each look at the getter makes a new object of it.
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        return func(*args, **(kwargs or {}))
