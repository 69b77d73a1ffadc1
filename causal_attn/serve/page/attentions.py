"""Which weight each earlier token got, in one layer and one head, over a whole text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.package.contract import Contract
from causal_attn.serve.failures import RequestError
from causal_attn.serve.language_model import LanguageModel
from causal_attn.serve.page.one_sequence import one_sequence

__all__ = ["attentions_of", "heads_of"]

_NAME = re.compile(r"attentions\.(\d{1,6})")
"""Transformers' name for what `export(output_attentions=True)` adds to a language model."""


def heads_of(contract: Contract) -> list[int]:
    """How many heads each layer has whose weights come out, by layer; empty: none come out."""
    found: dict[int, int] = {}
    for tensor in contract.outputs:
        match = _NAME.fullmatch(tensor.name)
        if match and len(tensor.dims) == 4 and isinstance(tensor.dims[1], int):
            found[int(match[1])] = tensor.dims[1]
    layers = sorted(found)
    return [found[layer] for layer in layers] if layers == [*range(len(layers))] else []


async def attentions_of(
    model: LanguageModel, ids: Sequence[int], layer: int, head: int
) -> NDArray[np.float32]:
    """``[tokens, tokens]``: row ``i`` has the weights that token ``i`` gave to the others.

    Args:
        model: One whose package has outputs ``attentions.0``, ``attentions.1`` and so on,
            ``[batch, heads, tokens, past_tokens + tokens]``.
        ids: The text, at least one token.
        layer: From 0.
        head: From 0.

    Raises:
        UsageError: The package has no weights.
        RequestError: There is no such layer or head.
        CausalAttnError: As in a call.
    """
    heads = heads_of(model.session.contract)
    if not heads:
        raise UsageError(
            f"`{model.name}` must give its weights, got a package without. Export it with "
            "`causal-attn export --output-attentions`."
        )
    if not 0 <= layer < len(heads):
        raise RequestError(f"`layer` must be from 0 to {len(heads) - 1}, got {layer}.")
    if not 0 <= head < heads[layer]:
        raise RequestError(f"`head` must be from 0 to {heads[layer] - 1}, got {head}.")
    feeds = one_sequence(model.session.contract, len(ids))
    feeds["input_ids"] = np.array([ids], feeds["input_ids"].dtype)
    name = f"attentions.{layer}"
    session = model.session
    results: dict[str, NDArray[Any]] = await model.turns.run(lambda: session.run(feeds, [name]))
    weights: NDArray[np.float32] = results[name][0, head].astype(np.float32)
    return np.ascontiguousarray(weights[:, : len(ids)])
