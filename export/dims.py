"""How a caller names the dynamic axes of a target, and which sizes they may have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from causal_attn.errors import InputError

__all__ = ["Dims", "Limits", "NamedAxes", "bounded", "name_axes", "suggested_axes"]

Dims = Mapping[str, Mapping[int, str] | Sequence[str | int | None]]
"""Input name to its dynamic axes: ``{0: "batch", 1: "tokens"}`` or one entry an axis.

A name may carry bounds: ``"tokens<=512"``, ``"2<=tokens"``, ``"2<=tokens<=512"``.
"""

_ATTENTION = ("q", "k", "v", "query", "key", "value")

_SUGGESTED: dict[str, dict[int, tuple[str, ...]]] = {
    name: {4: ("batch", "heads", "tokens", "features"), 2: ("tokens", "features")}
    for name in _ATTENTION
} | {name: {2: ("batch", "tokens")} for name in ("input_ids", "position_ids")}
"""Names whose axes mean the same everywhere; anything else the caller says with `Dims`."""

_ENTRY = re.compile(r"(?:(\d+)\s*<=)?\s*([^\s<=]+)\s*(?:<=\s*(\d+))?")


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes a dim may have.

    Attributes:
        low: The smallest.
        high: The largest; ``None``: there is none.
    """

    low: int = 1
    high: int | None = None

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low <= size <= (self.high or size)


@dataclass(frozen=True, kw_only=True)
class NamedAxes:
    """What `name_axes` understood.

    Attributes:
        dims: For every input: axis to the name of its dim.
        limits: Of the dims that have any.
        suggested: Whether the names of the inputs said so and not the caller: any dim but the
            tokens may then turn out to have one size.
    """

    dims: Mapping[str, Mapping[int, str]]
    limits: Mapping[str, Limits]
    suggested: bool


def bounded(dim: str, limits: Limits) -> str:
    """How a caller writes `dim` with `limits`: ``2<=tokens<=512``."""
    low = f"{limits.low}<=" if limits.low > 1 else ""
    return f"{low}{dim}" + (f"<={limits.high}" if limits.high is not None else "")


def name_axes(examples: Mapping[str, Tensor], dims: Dims | None) -> NamedAxes:
    """The names of the dynamic axes of `examples`.

    Raises:
        InputError: `dims` names an input or an axis that is not there, gives bounds that
            contradict one another or the examples, or calls no axis ``tokens``.
    """
    named: dict[str, dict[int, str]] = {}
    limits: dict[str, Limits] = {}
    for name, tensor in examples.items():
        given = suggested_axes(name, examples) if dims is None else _given(name, tensor, dims)
        named[name] = {}
        for axis, entry in given.items():
            dim, own = _parse(f"`dims[{name!r}][{axis}]`", entry)
            named[name][axis] = dim
            if own != Limits() and limits.setdefault(dim, own) != own:
                raise InputError(
                    f"`dims` must bound `{dim}` in one way, got {bounded(dim, limits[dim])!r} and "
                    f"{bounded(dim, own)!r}."
                )
    if unknown := sorted(set(dims or ()) - set(examples)):
        raise InputError(f"`dims` must name inputs of {list(examples)}, got {unknown}.")
    if not any("tokens" in axes.values() for axes in named.values()):
        raise InputError(
            "`dims` must call one axis of an input 'tokens', got none. Say which axis the tokens "
            f"lie along, such as dims={{{next(iter(examples))!r}: {{0: 'batch', 1: 'tokens'}}}}."
        )
    for name, axes in named.items():
        for axis, dim in axes.items():
            size = examples[name].shape[axis]
            if size not in limits.get(dim, Limits(low=0)):
                raise InputError(
                    f"`example_inputs` must keep to {bounded(dim, limits[dim])!r}, got {size} in "
                    f"axis {axis} of `{name}`."
                )
    return NamedAxes(dims=named, limits=limits, suggested=dims is None)


def suggested_axes(name: str, examples: Mapping[str, Tensor]) -> dict[int, str]:
    """Axis to the dim that the name of an input suggests; empty for other names."""
    tensor = examples[name]
    found = dict(enumerate(_SUGGESTED.get(name, {}).get(tensor.dim(), ())))
    attention = [examples[other] for other in _ATTENTION if other in examples]
    if name in _ATTENTION and tensor.dim() == 4:
        if len({other.shape[1] for other in attention if other.dim() == 4}) > 1:
            # Grouped heads: one number is a multiple of the other, which no two names say.
            del found[1]
        if tensor.shape[3] != attention[0].shape[-1]:
            # Of the values; keys have the features of the queries.
            found[3] = "v_features"
    return found


def _given(name: str, tensor: Tensor, dims: Dims) -> dict[int, str]:
    given = dims.get(name) or {}
    if not isinstance(given, Mapping):
        if len(given) != tensor.dim():
            raise InputError(
                f"`dims[{name!r}]` must have one entry for each of {tensor.dim()} axes, "
                f"got {list(given)}."
            )
        given = {axis: dim for axis, dim in enumerate(given) if isinstance(dim, str)}
    for axis in given:
        if not isinstance(axis, int) or not 0 <= axis < tensor.dim():
            raise InputError(
                f"`dims[{name!r}]` must name axes 0 to {tensor.dim() - 1}, got {axis!r}."
            )
    return dict(given)


def _parse(where: str, entry: str) -> tuple[str, Limits]:
    found = _ENTRY.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if found is None or not found[2].isidentifier():
        raise InputError(
            f"{where} must be an identifier, with bounds if it has any (2<=tokens<=512), "
            f"got {entry!r}."
        )
    limits = Limits(int(found[1] or 1), int(found[3]) if found[3] else None)
    if limits.low < 1 or (limits.high is not None and limits.high < max(2, limits.low)):
        raise InputError(
            f"{where} must allow a size of 2 or more, got {entry!r}. Leave an axis of one size "
            "without a name."
        )
    return found[2], limits
