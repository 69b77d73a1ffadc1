"""Fresh, named, mutually different inputs for a contract, at sizes that were never traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import InputError
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.verify.feeds.cache_slots import capacity, fill_unused

__all__ = ["LENGTHS", "Feeder", "Feeds", "Fixed", "Sizes", "switch_lengths"]

Feeds = dict[str, NDArray[Any]]
Sizes = Mapping[str, int]
Fixed = Callable[[tuple[int, ...], Sizes], NDArray[Any]]
"""``(shape, sizes) -> values`` of an input that is not free, such as position ids."""

LENGTHS = (1, 2, 3, 5, 7, 13, 16, 31, 32, 33, 64, 65, 127, 128, 129, 257)
"""Tokens a check runs at: 1, 2, primes, powers of two and their neighbours."""

_SIZES = {
    "batch": (1, 2, 3),
    "heads": (1, 3, 8),
    "features": (8, 5, 40, 64),
    "past_tokens": (0, 1, 7, 33),
}
_ROOM = (7, 1, 0, 33)
"""Slots of a cache of fixed capacity besides those for the new tokens."""
_TRAILING = (0, None, 4, -1)
"""Other dims follow the tokens: as many, 2, more, fewer. A branch on lengths that are equal, or on
one that is longer, is decided while tracing; only running both ways shows it."""

HUGE_HALF = 1e3
"""float16 ends at 65,504: scores of 64 unit-sized features times this still fit."""


@dataclass(frozen=True, kw_only=True)
class Feeder:
    """Makes and changes the inputs of one graph.

    Attributes:
        contract: Names, dtypes and dims.
        bounds: Integer inputs: low and high (exclusive) of their values; default 0 to 2.
        fixed: Inputs whose values follow from the sizes. They are never changed by a probe.
        pinned: Dims that have one size, such as a batch of 1.
        examined: Outputs that checks look at; ``None``: all with a token axis.
        single_past: Several new tokens after a past come as a batch of 1.
    """

    contract: Contract
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)
    pinned: Mapping[str, int] = field(default_factory=dict)
    examined: frozenset[str] | None = None
    single_past: bool = False

    def cases(self, lengths: Sequence[int] = LENGTHS) -> Iterator[dict[str, int]]:
        """Sizes for every named dim, one case a length.

        Cycles of different periods run through the dims, so that sizes meet in many pairs without
        the full product of them; heads, features and the like are odd as well as round.
        """
        tokens = self.contract.tokens
        names = {
            name
            for tensor in self.contract.inputs
            for dim in tensor.dims
            if isinstance(dim, str)
            for name in DimExpression.parse(dim).names
        } - {tokens}
        rings = {name: cycle(_SIZES.get(name, _TRAILING)) for name in sorted(names)}
        slots, room = capacity(self.contract), cycle(_ROOM)
        for index, length in enumerate(lengths):
            case = {name: _size(name, next(ring), length) for name, ring in rings.items()}
            if slots is not None:
                case[slots] = case.get("past_tokens", 0) + length + next(room)
            if index % 3 == 2:
                # Keep cycles of equal periods from always meeting in the same pairs.
                for ring in rings.values():
                    next(ring)
            for name, (low, high) in self.contract.bounds.items():
                if name in case and name not in ("past_tokens", slots):
                    case[name] = max(low, min(case[name], high or case[name]))
            sizes = {tokens: length, **case, **self.pinned}
            if self.single_past and length > 1 and sizes.get("past_tokens"):
                sizes["batch"] = 1
            yield sizes

    def make(self, sizes: Sizes, rng: np.random.Generator) -> Feeds:
        """Random arrays for every input.

        Floats are standard normal, integers uniform within their bounds; booleans are true four
        times in five, with one row wholly false where the tensor has two axes or more. Slots of a
        cache that hold no token are garbage, see `causal_attn.verify.feeds.cache_slots`.

        Raises:
            InputError: A named dim has no size.
        """
        feeds = {}
        for tensor in self.contract.inputs:
            shape = self.shape(tensor, sizes)
            if tensor.name in self.fixed:
                feeds[tensor.name] = self.fixed[tensor.name](shape, sizes).astype(tensor.dtype)
            else:
                feeds[tensor.name] = self._random(tensor, shape, rng)
        fill_unused(self.contract, feeds, rng)
        return feeds

    def perturb(
        self, feeds: Feeds, positions: range, amount: float, rng: np.random.Generator
    ) -> Feeds:
        """`feeds` with every free token input changed at `positions`, finitely."""
        changed = {}
        for tensor in self.contract.inputs:
            array = feeds[tensor.name].copy()
            if tensor.name not in self.fixed:
                for axis in self.token_axes(tensor):
                    past = array.shape[axis] - self._tokens(feeds)
                    view = np.moveaxis(array, axis, 0)[
                        past + positions.start : past + positions.stop
                    ]
                    view[...] = self.other(tensor, view, amount, rng)
            changed[tensor.name] = array
        return changed

    def other(
        self,
        tensor: TensorContract,
        values: NDArray[Any],
        amount: float,
        rng: np.random.Generator,
    ) -> NDArray[Any]:
        """Values that differ from `values` everywhere: floats by about `amount`."""
        if values.dtype == np.bool_:
            inverted: NDArray[Any] = np.logical_not(values)
            return inverted
        if values.dtype.kind in "iu":
            low, high = self.bounds.get(tensor.name, (0, 2))
            # A step from 1 to high - low - 1 never lands on the value itself.
            step = rng.integers(1, max(2, high - low), values.shape)
            moved = (values.astype(np.int64) - low + step) % max(1, high - low) + low
            return moved.astype(values.dtype)
        if values.dtype.itemsize < 4:
            amount = min(amount, HUGE_HALF)
        noise = rng.standard_normal(values.shape)
        return (values.astype(np.float64) + amount * noise).astype(values.dtype)

    def shape(self, tensor: TensorContract, sizes: Sizes) -> tuple[int, ...]:
        """The shape of `tensor` at `sizes`; expressions such as ``past + tokens`` are worked out.

        Raises:
            InputError: A named dim has no size, or an expression is negative at these sizes.
        """
        return tuple(
            dim if isinstance(dim, int) else _size_of(tensor, DimExpression.parse(dim), sizes)
            for dim in tensor.dims
        )

    def token_axes(self, tensor: TensorContract) -> Iterator[int]:
        """The axes of `tensor` that run along the new tokens: one row more for each of them.

        An axis of ``2*tokens`` is none: which two rows are of one token is not said.
        """
        for axis, dim in enumerate(tensor.dims):
            if isinstance(dim, str) and DimExpression.parse(dim).factor(self.contract.tokens) == 1:
                yield axis

    def token_axis(self, tensor: TensorContract) -> int | None:
        """The first of `token_axes`: of weights, the queries."""
        return next(self.token_axes(tensor), None)

    def watched(self) -> list[TensorContract]:
        """The outputs that have a token axis and are examined."""
        return [
            tensor
            for tensor in self.contract.outputs
            if self.token_axis(tensor) is not None
            and (self.examined is None or tensor.name in self.examined)
        ]

    def _tokens(self, feeds: Feeds) -> int:
        for tensor in self.contract.inputs:
            for axis, dim in enumerate(tensor.dims):
                if dim == self.contract.tokens:
                    return int(feeds[tensor.name].shape[axis])
        raise InputError(f"`contract` must have an input with a dim {self.contract.tokens!r}.")

    def _random(
        self, tensor: TensorContract, shape: tuple[int, ...], rng: np.random.Generator
    ) -> NDArray[Any]:
        if tensor.dtype == "bool":
            mask = rng.random(shape) < 0.8
            if mask.ndim >= 2:
                mask[..., -1, :] = False
            return mask
        if tensor.dtype.startswith(("int", "uint")):
            low, high = self.bounds.get(tensor.name, (0, 2))
            return rng.integers(low, high, shape).astype(tensor.dtype)
        return rng.standard_normal(shape).astype(tensor.dtype)


def switch_lengths(contract: Contract) -> tuple[int, ...]:
    """Tokens on both sides of every place where the graph switches between forms."""
    limits = [
        part.get("last_tokens")
        for part in contract.choice.get("switch", ())
        if isinstance(part, Mapping)
    ]
    return tuple(length for last in limits if isinstance(last, int) for length in (last, last + 1))


def _size(name: str, value: int | None, length: int) -> int:
    if name in _SIZES and value is not None:
        return value
    return 2 if value is None else max(1, length + value)


def _size_of(tensor: TensorContract, expression: DimExpression, sizes: Sizes) -> int:
    if missing := sorted(expression.names - sizes.keys()):
        raise InputError(
            f"`sizes` must have a size for every dim of `{tensor.name}`, got none for "
            f"{missing[0]!r}."
        )
    size = expression.size(sizes)
    if size is None or size < 0:
        raise InputError(
            f"`{tensor.name}` must have a size for {expression.text!r} at every length, got "
            f"{size} at {dict(sizes)}."
        )
    return size
