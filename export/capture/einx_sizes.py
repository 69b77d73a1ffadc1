"""einx's elementwise operations over dynamic sizes.

einx compiles each operation for the sizes it meets, as numbers, which fixes a length for good
while tracing: the position biases of x-transformers are written with it. What such an operation
says is a broadcast, so here its inputs are brought to the order of the output's axes, whatever
their sizes, and torch does the rest.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import SymInt, Tensor

__all__ = ["einx_sizes"]

_CHAINED: dict[str, Callable[..., Tensor]] = {
    name: getattr(torch, name)
    for name in ("add", "multiply", "logical_and", "logical_or", "maximum", "minimum", "logaddexp")
}
_OF_TWO: dict[str, Callable[..., Tensor]] = {
    "equal": torch.eq,
    **{
        name: getattr(torch, name)
        for name in (
            "subtract", "divide", "true_divide", "floor_divide", "less", "less_equal", "greater",
            "greater_equal", "not_equal",
        )
    },
}  # fmt: skip

_AXES = re.compile(r"[\w ,.]*->[\w .]*")
"""Names, ones and an ellipsis; brackets and axes that are composed stay einx's own."""


@contextmanager
def einx_sizes() -> Iterator[None]:
    """Inside this block einx, if it was imported, takes dynamic sizes as they are."""
    einx = sys.modules.get("einx")
    with ExitStack() as patches:
        for name in (*_CHAINED, *_OF_TWO, "where") if einx is not None else ():
            patches.enter_context(patch.object(einx, name, _broadcast(name, getattr(einx, name))))
        yield


def _broadcast(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """`own`, an operation of einx, where sizes are numbers; elsewhere torch's own of that name."""

    @functools.wraps(own)
    def operation(description: Any, *inputs: Any, **options: Any) -> Any:
        sizes = [size for one in inputs if isinstance(one, Tensor) for size in one.shape]
        dynamic = any(isinstance(size, SymInt) for size in sizes)
        placed = _placed(description, inputs) if dynamic and not options else None
        if placed is None:
            return own(description, *inputs, **options)
        if name == "where":
            return torch.where(*placed)
        if name in _OF_TWO:
            return _OF_TWO[name](*placed)
        return functools.reduce(_CHAINED[name], placed)

    return operation


def _placed(description: Any, inputs: tuple[Any, ...]) -> list[Tensor] | None:
    """`inputs` with their axes where the output has them; ``None`` where einx must do it."""
    if not isinstance(description, str) or not _AXES.fullmatch(description):
        return None
    left, right = description.split("->")
    parts = [part.split() for part in left.split(",")]
    if len(parts) != len(inputs):
        return None
    values = [torch.as_tensor(value) for value in inputs]
    # An ellipsis stands for the same axes wherever it is.
    depths = {
        value.ndim - len(part) + 1
        for part, value in zip(parts, values, strict=True)
        if "..." in part
    }
    if len(depths) > 1:
        return None
    many = [f"...{place}" for place in range(max(depths, default=0))]
    output = _spelled_out(right.split(), many)
    axes = [_spelled_out(part, many) for part in parts]
    named = [axis for axis in output if axis != "1"]
    if len({*named}) < len(named) or {*named} != {axis for part in axes for axis in part}:
        return None
    if any(value.ndim != len({*part}) for value, part in zip(values, axes, strict=True)):
        return None
    return [_in_order(value, part, output) for value, part in zip(values, axes, strict=True)]


def _spelled_out(axes: list[str], many: list[str]) -> list[str]:
    return [name for axis in axes for name in (many if axis == "..." else [axis])]


def _in_order(value: Tensor, axes: list[str], output: list[str]) -> Tensor:
    """`value`, whose dims are `axes`, with those of `output`: an axis that it lacks is 1 there."""
    value = value.permute([axes.index(axis) for axis in output if axis in axes])
    for place, axis in enumerate(output):
        if axis not in axes:
            value = value.unsqueeze(place)
    return value
