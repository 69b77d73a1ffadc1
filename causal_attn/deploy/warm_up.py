"""The first call of a model, whose time no client should wait for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.attention.example import worked_example
from causal_attn.package.contract import Contract
from causal_attn.verify.feeds.feeder import Feeder

__all__ = ["warm_up_feeds"]

TOKENS = 16
"""Of a model that the worked example does not fit; the nearest number that it allows."""


def warm_up_feeds(contract: Contract) -> dict[str, NDArray[Any]]:
    """Inputs that the contract allows: the worked example, where it fits, or random ones.

    Each sequence is alone in its batch where the contract lets the batch be 1.
    """
    example = worked_example()
    if (
        all(
            tensor.dtype == "float32"
            and tensor.name in example
            and _fits(tensor.dims, example[tensor.name].shape)
            for tensor in contract.inputs
        )
        and not contract.bounds
    ):
        return {tensor.name: example[tensor.name] for tensor in contract.inputs}
    feeder = Feeder(contract=contract)
    sizes = next(feeder.cases((contract.lengths_within((TOKENS,))[0],)))
    return feeder.make(sizes, np.random.default_rng(0))


def _fits(dims: tuple[str | int, ...], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(
        dim == size if isinstance(dim, int) else True
        for dim, size in zip(dims, shape, strict=True)
    )
