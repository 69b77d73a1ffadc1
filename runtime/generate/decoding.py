"""One sequence on its way through a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import ContextError, InputError, UsageError
from causal_attn.json_text import shown
from causal_attn.runtime.generate.decoder import Decoder, Past

__all__ = ["Decoding", "require_ids"]

CHUNK = 512
"""Tokens of a prompt that go through the model at once: its logits are tokens times vocabulary."""


class Decoding:
    """The tokens that a sequence has so far, and what the model keeps of them.

    For one thread at a time. A call that fails leaves it as it was before.

    Args:
        decoder: The model.
        context: Most tokens of the sequence; ``None``: as many as the contract allows.

    Attributes:
        tokens: Those that went through the model.
    """

    def __init__(self, decoder: Decoder, *, context: int | None = None) -> None:
        self.decoder = decoder
        self.tokens: list[int] = []
        self._context = context
        self._past = decoder.nothing(1)

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Put tokens behind the sequence.

        Args:
            ids: At least one.

        Returns:
            Logits ``[vocabulary]`` of what comes after the last.

        Raises:
            ContextError: They do not fit into the context.
            InputError: A token is not in the vocabulary.
            EngineError: ONNX Runtime failed, or a `Cancellation` ended the call.
        """
        logits = np.empty(0, np.float32)
        ids = require_ids(ids, self.decoder.vocabulary)
        self._require_room(len(ids))
        tokens, past = self.tokens, self._past
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            tokens = [*tokens, *chunk]
            called = self.decoder.call(_row(chunk), _ones(len(tokens)), past)
            past, logits = called.past, called.logits[0, -1]
        self.tokens, self._past = tokens, past
        return logits

    def feed_all(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """As `feed`, with logits after each of `ids`: ``[tokens, vocabulary]``, in one call.

        Raises:
            UsageError: The model gives logits of the last token alone.
            ContextError: They do not fit into the context.
            EngineError: ONNX Runtime failed, or a `Cancellation` ended the call.
        """
        if self.decoder.last_only:
            raise UsageError(
                "`session` must give logits of every token, got one that gives the last alone. "
                "Export it without `--last-logits`."
            )
        ids = require_ids(ids, self.decoder.vocabulary)
        self._require_room(len(ids))
        tokens = [*self.tokens, *ids]
        called = self.decoder.call(_row(ids), _ones(len(tokens)), self._past)
        self.tokens, self._past = tokens, called.past
        logits: NDArray[np.float32] = called.logits[0]
        return logits

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens, as if they had not been fed."""
        if type(count) is not int or not 0 <= count <= len(self.tokens):
            raise UsageError(f"`count` must be 0 to {len(self.tokens)}, got {count!r}.")
        if count:
            kept = len(self.tokens) - count
            self.tokens = self.tokens[:kept]
            self._past = self.decoder.rewound(self._past, kept)

    def copy(self) -> Decoding:
        """Another sequence with the same tokens, which goes its own way."""
        twin = Decoding(self.decoder, context=self._context)
        twin.tokens = self.tokens
        twin._past = self.decoder.copied(self._past, len(self.tokens))
        return twin

    @property
    def past(self) -> Past:
        """What the model keeps of the tokens; it is read, never written to."""
        return self._past

    @property
    def room(self) -> int | None:
        """Tokens that may still come; ``None``: any number."""
        limits = [limit for limit in (self._context, self.decoder.longest) if limit is not None]
        return min(limits) - len(self.tokens) if limits else None

    def _require_room(self, count: int) -> None:
        if self.room is not None and count > self.room:
            limit = self.room + len(self.tokens)
            raise ContextError(
                f"The sequence must have at most {limit} tokens, got {len(self.tokens)} and "
                f"{count} more.",
                self.tokens,
            )


def require_ids(ids: Sequence[int], vocabulary: int, name: str = "ids") -> list[int]:
    """`ids` as a list of at least one token; `name` is what messages call them.

    Raises:
        InputError: There is none, or one that is not in the vocabulary.
    """
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu":
        ids = ids.tolist()
    if not isinstance(ids, list | tuple | range) or not ids:
        raise InputError(
            f"`{name}` must be a list of at least one token, got {shown(ids)}. Text goes to "
            "`Text.encode`."
        )
    for token in ids:
        # True is an int to Python, and a mistake where a token belongs.
        number = isinstance(token, int | np.integer) and not isinstance(token, bool)
        if not number or not 0 <= token < vocabulary:
            raise InputError(
                f"`{name}` must be tokens from 0 to {vocabulary - 1}, got {shown(token)}."
            )
    return [int(token) for token in ids]


def _row(ids: Sequence[int]) -> NDArray[np.int64]:
    return np.array([ids], np.int64)


def _ones(tokens: int) -> NDArray[np.int64]:
    return np.ones((1, tokens), np.int64)
