"""The inputs of a language model whose values follow from the call: its mask and its positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.contract import Contract
from causal_attn.verify import influence
from causal_attn.verify.feeds.cache_slots import capacity, held
from causal_attn.verify.feeds.feeder import Fixed, Sizes

__all__ = ["behind_held", "consecutive", "decoder_roles", "unpadded"]


def decoder_roles(contract: Contract) -> tuple[str | None, str | None]:
    """Names of the attention mask and of the position ids of a graph from ids to logits.

    The mask is int64 ``[batch, past_tokens + tokens]``, ``[batch, tokens]`` or, a column for each
    slot of a cache of fixed capacity, ``[batch, capacity]``; positions are int64
    ``[batch, tokens]``. Any other graph has neither: what is called so there is data.
    """
    inputs = {tensor.name: tensor for tensor in contract.inputs}
    if "input_ids" not in inputs or all(tensor.name != "logits" for tensor in contract.outputs):
        return None, None
    totals = [contract.tokens, f"past_tokens + {contract.tokens}"]
    if (slots := capacity(contract)) is not None:
        totals.append(slots)
    found = []
    for name, dims in (
        ("attention_mask", [("batch", total) for total in totals]),
        ("position_ids", [("batch", contract.tokens)]),
    ):
        tensor = inputs.get(name)
        fits = tensor is not None and tensor.dtype == "int64" and tensor.dims in dims
        found.append(name if fits else None)
    return found[0], found[1]


def unpadded(shape: tuple[int, ...], sizes: Sizes) -> NDArray[Any]:
    """A mask without padding."""
    return np.ones(shape, np.int64)


def behind_held(contract: Contract) -> Fixed:
    """Positions that follow what each sequence holds in its buffers."""
    lengths = held(contract)

    def values(shape: tuple[int, ...], sizes: Sizes) -> NDArray[Any]:
        return lengths(shape[:1], sizes)[:, None] + np.arange(shape[1])

    return values


def consecutive(shape: tuple[int, ...], sizes: Sizes) -> NDArray[Any]:
    """Positions that follow the past: ``past_tokens, past_tokens + 1, …`` for each sequence."""
    return influence.positions(shape, len(shape) - 1, sizes.get("past_tokens", 0))
