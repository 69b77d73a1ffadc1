"""Which token changes which row, seen on the session that serves: a picture beside the proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.contract import Contract
from causal_attn.package.dims import DimExpression
from causal_attn.serve.page.one_sequence import one_sequence
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["reach_of"]

TOKENS = 12
"""Rows and columns of the picture, where the contract allows so many."""


async def reach_of(model: TensorModel) -> dict[str, Any]:
    """Rows of an output that change with each token, one token being changed at a time.

    Returns:
        ``output``, its name, and ``rows``, ``[tokens, tokens]`` bool: row ``i`` is true where a
        change of token ``j`` changed it. ``output`` is null where no output has a token axis.

    Raises:
        CausalAttnError: As in a call.
    """
    contract = model.session.contract
    tokens = contract.lengths_within((TOKENS,))[0]
    watched = _watched(contract)
    if watched is None:
        return {"output": None, "rows": []}
    name, axis = watched
    feeds = one_sequence(contract, tokens)
    session = model.session

    def rows_of(changed: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        result = np.moveaxis(session.run(changed, [name])[name], axis, 0)
        return result.reshape(len(result), -1)

    def looked() -> NDArray[np.bool_]:
        plain = rows_of(feeds)
        seen = np.zeros((len(plain), tokens), np.bool_)
        for token in range(tokens):
            other = rows_of(_changed(contract, feeds, token))
            seen[:, token] = ((other != plain) & ~(np.isnan(other) & np.isnan(plain))).any(axis=1)
        return seen

    return {"output": name, "rows": (await model.turns.run(looked)).tolist()}


def _watched(contract: Contract) -> tuple[str, int] | None:
    """The first output with a token axis that is no cache, and that axis."""
    made = set() if contract.cache is None else {entry.output for entry in contract.cache.entries}
    for tensor in contract.outputs:
        axis = _token_axis(contract, tensor.dims)
        if tensor.name not in made and axis is not None:
            return tensor.name, axis
    return None


def _changed(
    contract: Contract, feeds: Mapping[str, NDArray[Any]], token: int
) -> dict[str, NDArray[Any]]:
    """`feeds` with another value of each float or word at `token`; masks and positions stay."""
    floats = [tensor for tensor in contract.inputs if tensor.dtype.startswith("float")]
    tokenwise = [t for t in floats if _token_axis(contract, t.dims) is not None]
    words = [tensor for tensor in contract.inputs if tensor.name == "input_ids"]
    changed = dict(feeds)
    for tensor in words or tokenwise:
        axis = _token_axis(contract, tensor.dims)
        assert axis is not None  # both lists have tokens along an axis
        array = feeds[tensor.name].copy()
        view = np.moveaxis(array, axis, 0)
        view[token] = view[token] + 1
        changed[tensor.name] = array
    return changed


def _token_axis(contract: Contract, dims: tuple[str | int, ...]) -> int | None:
    for axis, dim in enumerate(dims):
        if isinstance(dim, str) and DimExpression.parse(dim).factor(contract.tokens) == 1:
            return axis
    return None
