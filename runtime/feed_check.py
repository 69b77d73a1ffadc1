"""What a caller feeds a session, checked against the contract before ONNX Runtime sees it.

ONNX Runtime reads big-endian arrays as if they were little-endian, takes lists, drops the mask of
a masked array, broadcasts inputs that share a dim name but not its size, and takes zero tokens.
Each of these is refused here. Nothing is cast; an array is copied only where its memory is not
C-contiguous and aligned.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import InputError
from causal_attn.package.cache_layout import EntryKind
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.runtime.limits import SizeLimits

__all__ = ["FeedCheck", "require_mapping"]

# Bits of `ndarray.flags.num`: one read instead of two.
_C_CONTIGUOUS = 0x0001
_ALIGNED = 0x0100
_PLAIN_MEMORY = _C_CONTIGUOUS | _ALIGNED

_MOST_KNOWN = 256
"""Combinations of shapes that are remembered: a service has few, a growing cache ever new ones."""


Bounds = Mapping[str, tuple[int, int | None]]
"""Of named dims: the smallest size and the largest."""


class _InputRule:
    """One input's contract, taken apart once so that a call compares integers."""

    __slots__ = ("dtype", "expressions", "fixed", "name", "named", "rank", "tensor")

    def __init__(self, tensor: TensorContract, growing: frozenset[str], bounds: Bounds) -> None:
        self.tensor = tensor
        self.name = tensor.name
        self.dtype = np.dtype(tensor.dtype)
        self.rank = len(tensor.dims)
        self.fixed: list[tuple[int, int]] = []
        # Axis, dim, smallest size, largest: a cache is empty before the first token, nothing else
        # is.
        self.named: list[tuple[int, str, int, int]] = []
        self.expressions: list[tuple[int, DimExpression]] = []
        for axis, dim in enumerate(tensor.dims):
            if isinstance(dim, int):
                self.fixed.append((axis, dim))
            elif (expression := DimExpression.parse(dim)).is_name:
                low, high = bounds.get(dim, (0 if dim in growing else 1, None))
                self.named.append((axis, dim, low, sys.maxsize if high is None else high))
            else:
                self.expressions.append((axis, expression))


@dataclass(frozen=True, slots=True)
class _Room:
    """Where the shapes and values are that say whether new tokens fit into a cache.

    Attributes:
        lengths: The input of the tokens that each sequence holds.
        tokens: An input of new tokens, and their axis.
        slots: An input of fixed capacity, and the axis of slots; all have the same capacity.
    """

    lengths: str
    tokens: tuple[str, int]
    slots: tuple[str, int]

    @classmethod
    def of(cls, contract: Contract) -> _Room | None:
        layout = contract.cache
        if layout is None or layout.lengths is None:
            return None
        entry = layout.of(EntryKind.FIXED)[0]
        assert entry.axis is not None  # a contract refuses a fixed entry without one
        tokens = next(
            (tensor.name, tensor.dims.index(contract.tokens))
            for tensor in contract.inputs
            if contract.tokens in tensor.dims
        )
        return cls(layout.lengths, tokens, (entry.input, entry.axis))


class FeedCheck:
    """Turns the arguments of a call into a feed that keeps the contract, or refuses them.

    Args:
        contract: Of the model; its dtypes must be numpy's.
        limits: On the size of a call; ``None``: there are none.

    Safe to call from many threads: of a call it keeps nothing but shapes that were right, in one
    set whose methods are atomic.
    """

    def __init__(self, contract: Contract, limits: SizeLimits | None = None) -> None:
        growing = _growing_dims(contract)
        self._rules = [_InputRule(tensor, growing, contract.bounds) for tensor in contract.inputs]
        self._names = tuple(tensor.name for tensor in contract.inputs)
        self._name_set = frozenset(self._names)
        self._known: set[tuple[tuple[int, ...], ...]] = set()
        self._room = _Room.of(contract)
        self._limits = limits

    def bind(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The feed of positional `arrays`, in the order of the contract, and `named` ones.

        Raises:
            InputError: An input is missing, unknown or given twice, or is not an array with the
                dtype and dims of the contract.
        """
        if len(arrays) > len(self._names):
            raise InputError(
                f"`arrays` must be at most the {len(self._names)} inputs {self._listed()}, got "
                f"{len(arrays)} arrays."
            )
        feeds = dict(zip(self._names, arrays, strict=False))
        if named:
            for name in feeds:
                if name in named:
                    raise InputError(f"`{name}` must be given once, got it by position and name.")
            feeds.update(named)
        return self._checked(feeds)

    def check(self, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """A copy of `feeds`, of which the arrays are copied only where they must be.

        Raises:
            InputError: As in `bind`, or `feeds` is no mapping of names.
        """
        return self._checked(dict(require_mapping("feeds", feeds)))

    def check_room(
        self, feeds: Mapping[str, NDArray[Any]], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        """Refuse new tokens that do not fit into a cache of fixed capacity.

        ONNX Runtime's kernel would return a longer one, without a word.

        Args:
            feeds: By name; nothing is checked unless the input of lengths is in them.
            shapes: Of every input.

        Raises:
            InputError: A sequence has fewer slots left than there are new tokens.
        """
        room = self._room
        if room is None or (lengths := feeds.get(room.lengths)) is None:
            return
        (source, axis), (cache, slots) = room.tokens, room.slots
        tokens, capacity = shapes[source][axis], shapes[cache][slots]
        if lengths.min() < 0 or lengths.max() + tokens > capacity:
            raise InputError(
                f"`{room.lengths}` must be 0 to {capacity - tokens}, got {lengths.tolist()}: the "
                f"cache has {capacity} slots and {tokens} new tokens go behind those it holds."
            )

    def _checked(self, feeds: dict[str, Any]) -> dict[str, NDArray[Any]]:
        feeds = self._fitting(feeds)
        if self._room is not None:
            self.check_room(feeds, {name: array.shape for name, array in feeds.items()})
        return feeds

    def _fitting(self, feeds: dict[str, Any]) -> dict[str, NDArray[Any]]:
        if feeds.keys() != self._name_set:
            self._refuse_names(feeds)
        if self._is_known(feeds):
            return feeds
        sizes: dict[str, int] = {}
        for rule in self._rules:
            array = feeds[rule.name]
            if type(array) is not np.ndarray:
                array = feeds[rule.name] = _base_array(rule, array)
            dtype = array.dtype
            if dtype is not rule.dtype and dtype != rule.dtype:
                _refuse_dtype(rule, dtype)
            shape = array.shape
            if len(shape) != rule.rank:
                _refuse_rank(rule, shape)
            for axis, size in rule.fixed:
                if shape[axis] != size:
                    _refuse_size(rule, axis, f"{size}", shape)
            for axis, dim, least, most in rule.named:
                size = shape[axis]
                if sizes.setdefault(dim, size) != size:
                    self._refuse_shared(rule, dim, sizes[dim], size)
                if size < least:
                    _refuse_size(rule, axis, f"at least {least}", shape)
                if size > most:
                    _refuse_size(rule, axis, f"at most {most}", shape)
        for rule in self._rules:
            for axis, expression in rule.expressions:
                _check_expression(rule, axis, expression, feeds[rule.name].shape, sizes)
        if self._limits is not None:
            self._limits.check({name: array.shape for name, array in feeds.items()}, sizes)
        for name, array in feeds.items():
            if array.flags.num & _PLAIN_MEMORY != _PLAIN_MEMORY:
                feeds[name] = np.require(array, requirements=["C", "A"])
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(tuple([feeds[name].shape for name in self._names]))
        return feeds

    def _is_known(self, feeds: Mapping[str, Any]) -> bool:
        """Whether everything is right because these shapes were: half the time of looking."""
        shapes = []
        for rule in self._rules:
            array = feeds[rule.name]
            if (
                type(array) is not np.ndarray
                or array.dtype is not rule.dtype
                or array.flags.num & _PLAIN_MEMORY != _PLAIN_MEMORY
            ):
                return False
            shapes.append(array.shape)
        return tuple(shapes) in self._known

    def _refuse_names(self, feeds: Mapping[str, Any]) -> NoReturn:
        missing = [name for name in self._names if name not in feeds]
        unknown = [name for name in feeds if name not in self._name_set]
        parts = [f"no {', '.join(map(repr, missing))}"] if missing else []
        if unknown:
            parts.append(f"unknown {', '.join(map(repr, unknown))}")
        raise InputError(f"The inputs must be {self._listed()}, got {' and '.join(parts)}.")

    def _refuse_shared(self, rule: _InputRule, dim: str, first: int, size: int) -> NoReturn:
        owner = next(
            other.name for other in self._rules if any(name == dim for _, name, *_ in other.named)
        )
        as_has = "in each of its dims of that name" if owner == rule.name else f"as `{owner}` has"
        raise InputError(f"`{rule.name}` must have {dim} = {first} {as_has}, got {size}.")

    def _listed(self) -> str:
        return ", ".join(
            f"`{rule.name}` {rule.tensor.dtype}{_dims(rule.tensor.dims)}" for rule in self._rules
        )


def require_mapping(argument: str, given: Any) -> Mapping[str, Any]:
    """`given`, which must map names to something.

    Raises:
        InputError: It does not.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        what = "a mapping with other keys" if isinstance(given, Mapping) else type(given).__name__
        raise InputError(f"`{argument}` must be a dict with names as keys, got {what}.")
    return given


def _growing_dims(contract: Contract) -> frozenset[str]:
    """The dims that may be 0: those along which a cache grows, and ``past…`` without a layout."""
    if contract.cache is None:
        dims = (dim for tensor in contract.inputs for dim in tensor.dims)
        return frozenset(d for d in dims if isinstance(d, str) and d.startswith("past"))
    axes = {entry.input: entry.axis for entry in contract.cache.of(EntryKind.GROWING)}
    return frozenset(
        dim
        for tensor in contract.inputs
        for axis, dim in enumerate(tensor.dims)
        if isinstance(dim, str) and axes.get(tensor.name) == axis
    )


def _base_array(rule: _InputRule, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            f"`{rule.name}` must be a plain numpy array, got a MaskedArray, whose mask would be "
            "lost. Fill it: array.filled(value)."
        )
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    remedy = (
        "array.detach().cpu().numpy()"
        if hasattr(value, "detach")
        else f"numpy.asarray(value, dtype={rule.tensor.dtype!r})"
    )
    raise InputError(
        f"`{rule.name}` must be a numpy array, got {type(value).__name__}. Convert it: {remedy}."
    )


def _refuse_dtype(rule: _InputRule, dtype: np.dtype[Any]) -> NoReturn:
    if dtype.newbyteorder("=") == rule.dtype:
        raise InputError(
            f"`{rule.name}` must be {rule.tensor.dtype} in the byte order of this machine, got "
            f"{dtype.str!r}. Convert it: array.astype({rule.tensor.dtype!r})."
        )
    raise InputError(
        f"`{rule.name}` must be {rule.tensor.dtype}, got {dtype}. Nothing is cast silently: "
        f"convert it yourself, array.astype({rule.tensor.dtype!r})."
    )


def _refuse_rank(rule: _InputRule, shape: tuple[int, ...]) -> NoReturn:
    raise InputError(
        f"`{rule.name}` must have {rule.rank} dims {_dims(rule.tensor.dims)}, got {len(shape)}: "
        f"{list(shape)}."
    )


def _refuse_size(rule: _InputRule, axis: int, wanted: str, shape: tuple[int, ...]) -> NoReturn:
    dim = rule.tensor.dims[axis]
    label = f"{dim} = " if isinstance(dim, str) else ""
    raise InputError(
        f"`{rule.name}` must have {label}{wanted} in dim {axis} of {_dims(rule.tensor.dims)}, got "
        f"{shape[axis]} in {list(shape)}."
    )


def _check_expression(
    rule: _InputRule,
    axis: int,
    expression: DimExpression,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
) -> None:
    # A name that no input has alone cannot be solved for here; the graph itself decides then.
    size = expression.size(sizes)
    if size is not None and shape[axis] != size:
        _refuse_size(rule, axis, f"{size}", shape)


def _dims(dims: tuple[str | int, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"
