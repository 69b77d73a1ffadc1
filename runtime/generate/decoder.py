"""A session as a decoder: which tensors are tokens, mask, positions, cache and logits.

The names are the ecosystem's (``input_ids``, ``attention_mask``, ``position_ids``, ``logits``),
and the contract's cache says which output continues which input. Everything that generates goes
through `Decoder.call`, one sequence or many, whatever the cache is::

                 mask [batch, past + tokens]               1 where a column is a token
                 ┌ past ────────────┬ tokens ┐
    sequence 0   │ 0  0  0  1  1  1 │ 1      │            padded on the left
    sequence 1   │ 1  1  1  1  1  1 │ 1      │
                 └──────────────────┴────────┘
    position_ids [batch, tokens]                           tokens before it in its own row: 3, 6

What becomes of the mask is for `causal_attn.runtime.generate.cache` to say: it is that of a cache
that grows; one of fixed capacity takes the number of tokens in each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.package.contract import Contract
from causal_attn.runtime.generate.cache import MASK, Past, cache_of, refused
from causal_attn.runtime.ort import value_of
from causal_attn.runtime.session import Session

__all__ = ["Decoder", "Past"]

_IDS, _POSITIONS, _LOGITS = "input_ids", "position_ids", "logits"


class _Called(NamedTuple):
    """What a call gave: ``[batch, tokens or 1, vocabulary]`` float32, and the past of the next."""

    logits: NDArray[np.float32]
    past: Past


class Decoder:
    """What generation needs of a session, for any number of sequences and of threads.

    Args:
        session: Of a language model with a cache that grows or one of fixed capacity, as
            `causal_attn.export.export` writes it; it stays open for as long as this is used.
        capacity: Most tokens of a sequence, >= 1; buffers of fixed capacity have so many slots
            from the beginning. ``None``: any number, and buffers become larger as tokens come.

    Attributes:
        session: As given.
        last_only: Whether a call gives logits of its last token alone.
        vocabulary: Logits of one token.
        longest: Most tokens that the contract and `capacity` allow a sequence to have; ``None``:
            any number.
        most: Most sequences that the contract allows a call to have; ``None``: any number.

    Raises:
        UsageError: The session's model is not such a one, and the message says what is missing;
            or `capacity` is no such number.
    """

    def __init__(self, session: Session, *, capacity: int | None = None) -> None:
        if not isinstance(session, Session):
            raise UsageError(f"`session` must be what `load` gave, got {type(session).__name__}.")
        self.session = session
        contract = session.contract
        inputs = {tensor.name: tensor for tensor in contract.inputs}
        outputs = {tensor.name: tensor for tensor in contract.outputs}
        logits = outputs.get(_LOGITS)
        ids = inputs.get(_IDS)
        if ids is None or logits is None or len(ids.dims) != 2 or len(logits.dims) != 3:
            raise refused(
                f"inputs `{_IDS}` [batch, tokens] and outputs `{_LOGITS}` [batch, tokens, "
                f"vocabulary], got {_listed(contract)}"
            )
        if capacity is not None and (type(capacity) is not int or capacity < 1):
            raise UsageError(f"`capacity` must be an integer >= 1 or None, got {capacity!r}.")
        layout = contract.cache
        slots = None if layout is None else layout.capacity
        ends = [capacity, *(_most(contract, dim) for dim in (contract.tokens, slots))]
        self.longest = min((end for end in ends if end is not None), default=None)
        if capacity is not None:
            capacity = self.longest
        self._cache = cache_of(contract, session.provider, capacity=capacity, longest=self.longest)
        assert layout is not None  # `cache_of` refuses a model without
        past = {entry.input for entry in layout.entries}
        known = {_IDS, MASK, _POSITIONS, *past, *({layout.lengths} - {None})}
        if unknown := sorted(inputs.keys() - known):
            raise refused(f"no inputs besides {sorted(known, key=str)}, got {unknown}")
        self._masked, self._positioned = MASK in inputs, _POSITIONS in inputs
        self._next = {output: name for name, output in layout.pairs.items()}
        self._logits = [tensor.name for tensor in contract.outputs].index(_LOGITS)
        self._outputs = [tensor.name for tensor in contract.outputs]
        self.last_only = logits.dims[1] == 1
        if not isinstance(logits.dims[2], int):
            raise refused(f"a fixed vocabulary, got {logits.dims[2]!r}")
        self.vocabulary = logits.dims[2]
        batch = ids.dims[0]
        self.most = batch if isinstance(batch, int) else _most(contract, batch)

    def nothing(self, batch: int) -> Past:
        """The past of the first call of `batch` sequences: no tokens."""
        return self._cache.nothing(batch)

    def call(self, ids: NDArray[np.int64], mask: NDArray[np.int64], past: Past) -> _Called:
        """Run the model on new tokens behind `past`.

        Args:
            ids: ``[batch, tokens]``.
            mask: ``[batch, past + tokens]``, 1 for tokens and 0 for padding.
            past: What the call before returned, or `nothing`. After a call that fails it may be
                used again; after another, only what `copied` made of it before.

        Raises:
            InputError: A call is larger than `load` allowed.
            ClosedError: The session was closed.
            StoppedError: A `Cancellation` ended the call.
            EngineError: ONNX Runtime failed.
        """
        new = ids.shape[1]
        past = self._cache.with_room(past, mask, new)
        arrays = {_IDS: ids, **self._cache.inputs(past, mask, new)}
        if not self._masked:
            del arrays[MASK]
        if self._positioned:
            counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
            arrays[_POSITIONS] = counted[:, -new:]
        values = {name: value_of(np.ascontiguousarray(array)) for name, array in arrays.items()}
        share = self._cache.share
        results = self.session.run_shared({**values, **past}, share=share)
        kept = {
            # The value that went in: one that comes out does not hold the memory it shares.
            self._next[name]: past[share[name]] if name in share else value
            for name, value in zip(self._outputs, results, strict=True)
            if name in self._next
        }
        logits = np.asarray(results[self._logits].numpy(), dtype=np.float32)
        return _Called(logits, kept)

    def rewound(self, past: Past, tokens: int) -> Past:
        """The first `tokens` of `past`, of one sequence, copied."""
        return self._cache.rewound(past, tokens)

    def copied(self, past: Past, tokens: int) -> Past:
        """`past`, of one sequence with so many `tokens`, for calls that go another way."""
        return self._cache.copied(past, tokens)

    def laid(self, sources: Sequence[tuple[Past, int]], lengths: Sequence[int]) -> Past:
        """Rows of several pasts in one, copied.

        Args:
            sources: At least one past, and the row of it.
            lengths: Tokens of each.

        Returns:
            For `call`, with a mask whose rows begin with padding up to the longest.
        """
        return self._cache.laid(sources, lengths)


def _most(contract: Contract, dim: str | None) -> int | None:
    return None if dim is None else contract.bounds.get(dim, (1, None))[1]


def _listed(contract: Contract) -> str:
    return f"{[t.name for t in contract.inputs]} and {[t.name for t in contract.outputs]}"
