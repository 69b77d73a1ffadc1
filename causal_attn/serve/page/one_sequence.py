"""Inputs of one sequence with nothing hidden: no past, no padding, positions in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.contract import Contract
from causal_attn.package.dims import DimExpression
from causal_attn.verify.feeds.feeder import Feeder

__all__ = ["one_sequence"]

_SIZE = 2
"""Of dims that nothing is known of: small, and more than one."""


def one_sequence(contract: Contract, tokens: int) -> dict[str, NDArray[Any]]:
    """An array for each input of `contract`, by name.

    Floats are standard normal, the same for the same contract and size; masks let everything
    through, positions count up, and a cache is empty: its buffers, where it has a fixed capacity,
    have room for `tokens`.

    Raises:
        InputError: A dim has no size at so many tokens.
    """
    feeder = Feeder(contract=contract)
    sizes = {
        name: _size(contract, name, tokens)
        for tensor in contract.inputs
        for dim in tensor.dims
        if isinstance(dim, str)
        for name in DimExpression.parse(dim).names
    }
    rng = np.random.default_rng(0)
    kept = set() if contract.cache is None else {entry.input for entry in contract.cache.entries}
    feeds: dict[str, NDArray[Any]] = {}
    for tensor in contract.inputs:
        shape = feeder.shape(tensor, sizes)
        if tensor.name in kept or tensor.name == _lengths(contract):
            feeds[tensor.name] = np.zeros(shape, tensor.dtype)
        elif tensor.dtype.startswith("float"):
            feeds[tensor.name] = rng.standard_normal(shape).astype(tensor.dtype)
        elif "position" in tensor.name:
            feeds[tensor.name] = np.broadcast_to(np.arange(shape[-1]), shape).astype(tensor.dtype)
        elif "mask" in tensor.name or tensor.dtype == "bool":
            feeds[tensor.name] = np.ones(shape, tensor.dtype)
        else:
            feeds[tensor.name] = np.zeros(shape, tensor.dtype)
    return feeds


def _lengths(contract: Contract) -> str | None:
    return None if contract.cache is None else contract.cache.lengths


def _size(contract: Contract, name: str, tokens: int) -> int:
    if name == contract.tokens or (contract.cache is not None and name == contract.cache.capacity):
        return tokens
    if name == "past_tokens":
        return 0
    least, most = contract.bounds.get(name, (1, None))
    wanted = 1 if name == "batch" else _SIZE
    return max(least, wanted if most is None else min(wanted, most))
