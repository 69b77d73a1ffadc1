"""Fresh, named, mutually different inputs for a contract, at sizes that were never traced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.contract import Contract, TensorContract
from causal_attn.errors import InputError

__all__ = ["LENGTHS", "Feeds", "cases", "make_feeds", "resize", "switch_lengths"]

Feeds = dict[str, NDArray[Any]]
Bounds = Mapping[str, tuple[int, int]]

LENGTHS = (1, 2, 3, 5, 7, 13, 16, 31, 32, 33, 64, 65, 127, 128, 129, 257)
"""Tokens a check runs at: 1, 2, primes, powers of two and their neighbours."""

_SIZES = {
    "batch": (1, 2, 3),
    "heads": (1, 3, 8),
    "features": (8, 5, 40, 64),
    "past_tokens": (0, 1, 7, 33),
}
_TRAILING = (0, None, 4, -1)
"""Other dims follow the tokens: as many, 2, more, fewer. A branch on lengths that are equal, or on
one that is longer, is decided while tracing; only running both ways shows it."""


def cases(contract: Contract, lengths: Sequence[int] = LENGTHS) -> Iterator[dict[str, int]]:
    """Sizes for every named dim, one case a length.

    Cycles of different periods run through the dims, so that sizes meet in many pairs without the
    full product of them; heads, features and the like are odd as well as round.
    """
    names = {
        dim
        for tensor in contract.inputs
        for dim in tensor.dims
        if isinstance(dim, str) and dim != contract.tokens
    }
    names = {term for name in names for term in _terms(name)} - {contract.tokens}
    rings = {name: cycle(_SIZES.get(name, _TRAILING)) for name in sorted(names)}
    for index, length in enumerate(lengths):
        case = {name: _size(name, next(ring), length) for name, ring in rings.items()}
        if index % 3 == 2:
            # Keep cycles of equal periods from always meeting in the same pairs.
            for ring in rings.values():
                next(ring)
        yield {contract.tokens: length, **case}


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


def _terms(dim: str) -> list[str]:
    return [term.strip() for term in dim.split("+") if not term.strip().isdigit()]


def make_feeds(
    contract: Contract,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    bounds: Bounds | None = None,
) -> Feeds:
    """Random arrays for every input of `contract`.

    Floats are standard normal; integers are uniform in ``bounds[name]`` (low, high exclusive;
    default 0 to 2); booleans are true four times in five, with one row wholly false where the
    tensor has two axes or more.

    Args:
        contract: Names, dtypes and dims.
        sizes: One size for every named dim of the inputs.
        rng: Source of the values.
        bounds: Of integer inputs.

    Raises:
        InputError: A named dim has no size.
    """
    return {
        tensor.name: _array(tensor, _shape(tensor, sizes), rng, bounds or {})
        for tensor in contract.inputs
    }


def resize(tensor: TensorContract, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of `tensor` at `sizes`; an expression such as ``past_tokens + tokens`` is summed.

    Raises:
        InputError: A named dim has no size.
    """
    return _shape(tensor, sizes)


def _shape(tensor: TensorContract, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape = []
    for dim in tensor.dims:
        if isinstance(dim, int):
            shape.append(dim)
            continue
        terms = [term.strip() for term in dim.split("+")]
        missing = [term for term in terms if term not in sizes and not term.isdigit()]
        if missing:
            raise InputError(
                f"`sizes` must have a size for every dim of `{tensor.name}`, "
                f"got none for {missing[0]!r}."
            )
        shape.append(sum(int(term) if term.isdigit() else sizes[term] for term in terms))
    return tuple(shape)


def _array(
    tensor: TensorContract, shape: tuple[int, ...], rng: np.random.Generator, bounds: Bounds
) -> NDArray[Any]:
    if tensor.dtype == "bool":
        mask = rng.random(shape) < 0.8
        if mask.ndim >= 2:
            mask[..., -1, :] = False
        return mask
    if tensor.dtype.startswith(("int", "uint")):
        low, high = bounds.get(tensor.name, (0, 2))
        return rng.integers(low, high, shape).astype(tensor.dtype)
    return rng.standard_normal(shape).astype(tensor.dtype)
