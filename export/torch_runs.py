"""The target itself in float64, as the oracle, and at its own dtype, as the yardstick."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from causal_attn.export.target import Target, evaluating
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.oracle.yardstick import Yardstick

__all__ = ["yardstick"]

_NARROW = (torch.float16, torch.bfloat16, torch.float32)


class _Widening(TorchDispatchMode):
    """Ops that ask for a narrower float get float64.

    Norms that go through float32 on purpose, and tensors made inside forward, would otherwise
    leave float32 roundings in the oracle.
    """

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._default)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {
            name: torch.float64 if name == "dtype" and value in _NARROW else value
            for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


class _Run:
    def __init__(self, target: Target, *, wide: bool) -> None:
        self._target = target
        self._wide = wide
        self._module = copy.deepcopy(target.module).double() if wide else target.module

    def __call__(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        # Copies: a module may write to its inputs, and the feeds are compared later.
        inputs = {name: torch.from_numpy(array.copy()) for name, array in feeds.items()}
        with evaluating(self._module), torch.no_grad():
            if self._wide:
                with _Widening():  # type: ignore[no-untyped-call]
                    result = self._module(**inputs)
            else:
                result = self._module(**inputs)
        tensors: list[Tensor] = tree_leaves(result)
        return {
            name: tensor.numpy()
            for name, tensor in zip(self._target.outputs, tensors, strict=True)
        }


def yardstick(target: Target) -> Yardstick:
    """`target` run in float64 throughout, and as it is."""
    return Yardstick(oracle=_Run(target, wide=True), baseline=_Run(target, wide=False))
