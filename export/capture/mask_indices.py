"""Values assigned where a mask is true, written with the mask instead of its indices.

``scores[..., rows, columns] = value`` with ``rows, columns = torch.triu_indices(t, t, 1)`` or
``mask.nonzero(as_tuple=True)`` sets what ``scores[..., mask] = value`` sets. How many indices
there are is a number that only data tells, or, with `torch.triu_indices`, one number fixed for
good; a mask has the shape of what it hides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.overrides import TorchFunctionMode

__all__ = ["TrianglesAsMasks", "index_by_masks"]

_aten = torch.ops.aten

_TRIANGLES: dict[Any, Callable[..., Tensor]] = {
    torch.triu_indices: torch.triu,
    torch.tril_indices: torch.tril,
}


class TrianglesAsMasks(TorchFunctionMode):
    """Indices of a triangle of dynamic size are those where a triangular mask is true.

    torch's own functions take numbers alone, so that a length would be fixed while tracing.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {**dict(zip(("row", "col", "offset"), args, strict=False)), **(kwargs or {})}
        sizes = [given.get(name) for name in ("row", "col", "offset")]
        if func not in _TRIANGLES or not any(isinstance(size, torch.SymInt) for size in sizes):
            return func(*args, **(kwargs or {}))
        ones = torch.ones(given["row"], given["col"], dtype=torch.bool)
        indices = _TRIANGLES[func](ones, given.get("offset", 0)).nonzero().T
        dtype = given.get("dtype") or indices.dtype
        return indices if dtype is indices.dtype else indices.to(dtype)


def index_by_masks(program: ExportedProgram) -> None:
    """Turn assignments at the indices of a mask into assignments by the mask, in place."""
    for target in (_aten.index_put.default, _aten.index_put_.default):
        for node in program.graph.find_nodes(op="call_function", target=target):
            arguments: tuple[Any, ...] = node.args
            indices = list(arguments[1])
            leading = next((at for at, index in enumerate(indices) if index is not None), 0)
            columns = [_column(index) for index in indices[leading:]]
            mask = columns[0][0] if columns and columns[0] is not None else None
            if mask is None or columns != [(mask, at) for at in range(mask.meta["val"].dim())]:
                continue
            mask = _as_bool(mask, before=node)
            node.args = (arguments[0], [*indices[:leading], mask], *arguments[2:])
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _as_bool(mask: Node, *, before: Node) -> Node:
    """`mask`, or where it is not zero, which is where it has indices."""
    value = mask.meta["val"]
    if value.dtype is torch.bool:
        return mask
    with mask.graph.inserting_before(before):
        found = mask.graph.call_function(_aten.ne.Scalar, (mask, 0))
    found.meta["val"] = _aten.ne.Scalar(value, 0)
    return found


def _column(index: Node | None) -> tuple[Node, int] | None:
    """The mask, and the axis of it, whose indices `index` has; ``None``: it has others."""
    if index is None:
        return None
    arguments: tuple[Any, ...] = index.args
    if index.target is operator.getitem:
        several, at = arguments
        if several.target in (_aten.nonzero_numpy.default, _aten.where.default):
            return several.args[0], at
        if several.target is _aten.unbind.int:
            return _along(several.args[0], several.args[1] if len(several.args) > 1 else 0, at)
    if index.target is _aten.select.int:
        return _along(*arguments)
    return None


def _along(indices: Node, axis: int, at: int) -> tuple[Node, int] | None:
    """Part `at`, along `axis`, of all indices of a mask in one tensor."""
    rows = indices.target in (_aten.numpy_T.default, _aten.t.default) or (
        indices.target in (_aten.transpose.int, _aten.permute.default)
    )
    found: Any = indices.args[0] if rows else indices
    if found.target is not _aten.nonzero.default or axis % 2 != (0 if rows else 1):
        return None
    return found.args[0], at
