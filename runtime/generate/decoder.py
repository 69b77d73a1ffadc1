"""A session as a decoder: which tensors are tokens, mask, positions, cache and logits.

The names are the ecosystem's (``input_ids``, ``attention_mask``, ``position_ids``, ``logits``),
and the contract's cache says which output continues which input. Everything that generates goes
through `Decoder.call`, one sequence or many::

                 attention_mask [batch, past + tokens]     1 where a column is a token
                 ┌ past ────────────┬ tokens ┐
    sequence 0   │ 0  0  0  1  1  1 │ 1      │            padded on the left
    sequence 1   │ 1  1  1  1  1  1 │ 1      │
                 └──────────────────┴────────┘
    position_ids [batch, tokens]                           tokens before it in its own row: 3, 6
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.package.cache_layout import CacheEntry, EntryKind
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.runtime.ort import value_of
from causal_attn.runtime.session import Session

__all__ = ["Decoder", "Past"]

_IDS, _MASK, _POSITIONS, _LOGITS = "input_ids", "attention_mask", "position_ids", "logits"

Past = Mapping[str, Any]
"""Name of an input to the ``onnxruntime.OrtValue`` with what was kept of the calls before."""


class _Called(NamedTuple):
    """What a call gave: ``[batch, tokens or 1, vocabulary]`` float32, and the past of the next."""

    logits: NDArray[np.float32]
    past: Past


class Decoder:
    """What generation needs of a session, for any number of sequences and of threads.

    Args:
        session: Of a language model with a cache that grows, as `causal_attn.export.export`
            writes it; it stays open for as long as this is used.

    Attributes:
        session: As given.
        last_only: Whether a call gives logits of its last token alone.
        vocabulary: Logits of one token.
        longest: Most tokens that the contract allows a sequence to have; ``None``: any number.
        most: Most sequences that the contract allows a call to have; ``None``: any number.

    Raises:
        UsageError: The session's model is not such a one; the message says what is missing.
    """

    def __init__(self, session: Session) -> None:
        if not isinstance(session, Session):
            raise UsageError(f"`session` must be what `load` gave, got {type(session).__name__}.")
        self.session = session
        contract = session.contract
        inputs = {tensor.name: tensor for tensor in contract.inputs}
        outputs = {tensor.name: tensor for tensor in contract.outputs}
        logits = outputs.get(_LOGITS)
        ids = inputs.get(_IDS)
        if ids is None or logits is None or len(ids.dims) != 2 or len(logits.dims) != 3:
            raise _refused(
                f"inputs `{_IDS}` [batch, tokens] and outputs `{_LOGITS}` [batch, tokens, "
                f"vocabulary], got {_listed(contract)}"
            )
        if contract.cache is None:
            raise _refused("a cache in its contract, got none")
        entries = contract.cache.entries
        if other := [entry for entry in entries if entry.kind is not EntryKind.GROWING]:
            raise _refused(f"a cache that grows, got {other[0].input!r} of kind {other[0].kind}")
        known = {_IDS, _MASK, _POSITIONS, *(entry.input for entry in entries)}
        if unknown := sorted(inputs.keys() - known):
            raise _refused(f"no inputs besides {sorted(known)}, got {unknown}")
        self._masked, self._positioned = _MASK in inputs, _POSITIONS in inputs
        self._entries = entries
        self._empty = {entry.input: _empty(inputs[entry.input], entry, ids) for entry in entries}
        self._next = {entry.output: entry.input for entry in entries}
        self._logits = [tensor.name for tensor in contract.outputs].index(_LOGITS)
        self._outputs = [tensor.name for tensor in contract.outputs]
        self.last_only = logits.dims[1] == 1
        if not isinstance(logits.dims[2], int):
            raise _refused(f"a fixed vocabulary, got {logits.dims[2]!r}")
        self.vocabulary = logits.dims[2]
        self.longest = contract.bounds.get(contract.tokens, (1, None))[1]
        batch = ids.dims[0]
        self.most = batch if isinstance(batch, int) else contract.bounds.get(batch, (1, None))[1]

    def nothing(self, batch: int) -> Past:
        """The past of the first call of `batch` sequences: no tokens."""
        return {
            name: value_of(np.zeros((batch, *shape), dtype))
            for name, (shape, dtype) in self._empty.items()
        }

    def call(self, ids: NDArray[np.int64], mask: NDArray[np.int64], past: Past) -> _Called:
        """Run the model on new tokens behind `past`.

        Args:
            ids: ``[batch, tokens]``.
            mask: ``[batch, past + tokens]``, 1 for tokens and 0 for padding.
            past: What the call before returned, or `nothing`. It may be used again.

        Raises:
            InputError: A call is larger than `load` allowed.
            ClosedError: The session was closed.
            StoppedError: A `Cancellation` ended the call.
            EngineError: ONNX Runtime failed.
        """
        values = {_IDS: value_of(np.ascontiguousarray(ids)), **past}
        if self._masked:
            values[_MASK] = value_of(np.ascontiguousarray(mask))
        if self._positioned:
            counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
            values[_POSITIONS] = value_of(np.ascontiguousarray(counted[:, -ids.shape[1] :]))
        results = self.session.run_shared(values)
        kept = {
            self._next[name]: value
            for name, value in zip(self._outputs, results, strict=True)
            if name in self._next
        }
        logits = np.asarray(results[self._logits].numpy(), dtype=np.float32)
        return _Called(logits, kept)

    def rewound(self, past: Past, tokens: int) -> Past:
        """The first `tokens` of `past`, copied: ``[…, :tokens, …]`` of every entry."""
        return self._each(past, lambda array, axis: _first(array, axis, tokens))

    def arrays(self, past: Past) -> dict[str, tuple[NDArray[Any], int]]:
        """Every entry of `past` as an array, which may be a view, and its axis of tokens."""
        return {entry.input: (past[entry.input].numpy(), _axis(entry)) for entry in self._entries}

    def _each(self, past: Past, change: Any) -> Past:
        return {
            name: value_of(np.ascontiguousarray(change(array, axis)))
            for name, (array, axis) in self.arrays(past).items()
        }


def _first(array: NDArray[Any], axis: int, tokens: int) -> NDArray[Any]:
    taken: NDArray[Any] = array[(slice(None),) * axis + (slice(tokens),)]
    # A view would keep the memory of what was cut off, which the value would hold.
    return taken.copy()


def _axis(entry: CacheEntry) -> int:
    assert entry.axis is not None  # a contract refuses a growing entry without one
    return entry.axis


def _empty(
    tensor: TensorContract, entry: CacheEntry, ids: TensorContract
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape of no tokens, without the batch in front, and the dtype."""
    if tensor.dims[0] != ids.dims[0] or entry.axis == 0:
        raise _refused(f"sequences along dim 0 of `{tensor.name}`, got {list(tensor.dims)}")
    shape = [0 if axis == entry.axis else dim for axis, dim in enumerate(tensor.dims)][1:]
    if named := [dim for dim in shape if isinstance(dim, str)]:
        raise _refused(f"no dims besides batch and past in `{tensor.name}`, got {named}")
    return tuple(int(dim) for dim in shape), np.dtype(tensor.dtype)


def _refused(what: str) -> UsageError:
    return UsageError(
        f"`session` must be of a language model with {what}. Export one with "
        "`causal-attn export FOLDER -o OUT`."
    )


def _listed(contract: Contract) -> str:
    return f"{[t.name for t in contract.inputs]} and {[t.name for t in contract.outputs]}"
