"""One request on its way through the engine, and the tally of all of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError, ContextError, EngineError, StoppedError
from causal_attn.runtime.engine.stream import Stream
from causal_attn.runtime.generate.answer import Request

__all__ = ["Counts", "Tally", "Work"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Requests by what became of them, and tokens.

    Attributes:
        waiting: Taken, and not begun.
        running: Begun, with their prompt or with their answer.
        finished: Ended by themselves.
        failed: Ended by an error; a deadline and a full context are errors.
        cancelled: Ended by `Stream.cancel`.
        tokens: Generated for all of them.
        reused: Tokens of prompts that were not computed, since an earlier prompt began alike.
    """

    waiting: int
    running: int
    finished: int
    failed: int
    cancelled: int
    tokens: int
    reused: int


class Tally:
    """What `Counts` says of the past; safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = dict.fromkeys(("finished", "failed", "cancelled", "tokens", "reused"), 0)

    def add(self, name: str, number: int = 1) -> None:
        """Count `number` more of `name`."""
        with self._lock:
            self._numbers[name] += number

    def counts(self, *, waiting: int, running: int) -> Counts:
        """With what there is now."""
        with self._lock:
            return Counts(waiting=waiting, running=running, **self._numbers)


class Work:
    """A request, its stream, and whether it is over; the engine's thread alone ends it.

    Args:
        request: What is asked.
        stream: Where tokens go.
        reserved: Tokens that it may have in the cache at most.
        context: Most tokens of prompt and answer; ``None``: any number.
        tally: Counts it.

    Attributes:
        over: Whether its stream has ended.
    """

    def __init__(
        self, request: Request, stream: Stream, reserved: int, context: int | None, tally: Tally
    ) -> None:
        self.request, self.reserved = request, reserved
        self.over = False
        self._stream, self._context, self._tally = stream, context, tally

    def choose(self, logits: NDArray[np.float32]) -> None:
        """The next token, by `logits` ``[vocabulary]``; it may be the last."""
        try:
            token = self.request.next(logits)
        # A tokenizer is other people's code: what it raises is this request's alone. A panic of
        # Rust is no `Exception`.
        except BaseException as error:  # noqa: BLE001
            self.end(error)
            return
        self._tally.add("tokens")
        if token.finish is not None:
            self.over = True
            self._tally.add("finished")
        self._stream.put(token)
        tokens = len(self.request.ids) + len(self.request.answer.ids)
        if not self.over and self._context is not None and tokens > self._context:
            message = f"The sequence must have at most {self._context} tokens, got one more."
            self.end(ContextError(message, [*self.request.ids, *self.request.answer.ids]))

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes: because of `error`, or, with ``None``, since nobody wants it."""
        if self.over:
            return
        told: CausalAttnError | None
        if error is None or isinstance(error, CausalAttnError):
            told = error
        else:
            told = EngineError(f"The step failed: {type(error).__name__}: {error}")
            told.__cause__ = error
        self.over = True
        self._tally.add("cancelled" if told is None else "failed")
        self._stream.end(told)

    def end_if_unwanted(self) -> None:
        """End it if it was cancelled or its deadline has passed."""
        if self._stream.cancelled:
            self.end(None)
        elif time.monotonic() >= self._stream.deadline:
            self.end(StoppedError("The answer must end by its deadline, got stopped."))
