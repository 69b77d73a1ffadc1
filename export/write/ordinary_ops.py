"""Ops of ordinary code that torch.onnx cannot write, or writes so that no kernel runs them.

Each is said in ops that it writes well: a table for ``run_decompositions``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["ORDINARY"]

_aten = torch.ops.aten

_TRIANGULAR = (torch.float32, torch.float64, torch.int64, torch.bool)
"""What ONNX Runtime's CPU kernel of Trilu takes."""


def _index_put(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """One number assigned where a mask is true: a select.

    ``scores[..., mask] = value``: the mask has the axes of `tensor` from its place on, and
    torch.onnx knows only masks that come first.
    """
    given = [(at, index) for at, index in enumerate(indices) if index is not None]
    if len(given) != 1 or accumulate or values.numel() != 1:
        return NotImplemented
    ((at, mask),) = given
    if mask.dtype is not torch.bool:
        return NotImplemented
    trailing = tensor.dim() - at - mask.dim()
    shaped = mask.reshape([*mask.shape, *[1] * trailing])
    return torch.where(shaped, values.reshape(()).to(tensor.dtype), tensor)


def _triangle(lower: bool) -> Callable[..., Any]:
    def triangle(tensor: Tensor, diagonal: int = 0) -> Any:
        """For dtypes that ONNX Runtime's Trilu does not take: a select by position."""
        if tensor.dtype in _TRIANGULAR:
            return NotImplemented
        rows = torch.arange(tensor.shape[-2], device=tensor.device)[:, None] + diagonal
        columns = torch.arange(tensor.shape[-1], device=tensor.device)
        kept = columns <= rows if lower else columns >= rows
        return torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype))

    return triangle


def _hstack(tensors: Sequence[Tensor]) -> Tensor:
    """torch.onnx makes a sequence and a loop over it."""
    tensors = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
    return torch.cat(tensors, 0 if tensors[0].dim() == 1 else 1)


def _vstack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(1, -1) if tensor.dim() < 2 else tensor for tensor in tensors])


def _column_stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(
        [tensor.reshape(-1, 1) if tensor.dim() < 2 else tensor for tensor in tensors], 1
    )


ORDINARY: Mapping[Any, Callable[..., Any]] = {
    _aten.index_put.default: _index_put,
    _aten.triu.default: _triangle(lower=False),
    _aten.tril.default: _triangle(lower=True),
    _aten.hstack.default: _hstack,
    _aten.vstack.default: _vstack,
    _aten.column_stack.default: _column_stack,
}
