"""Requests from any number of threads and event loops, answered by one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn, Self, Unpack

from causal_attn.errors import BusyError, ClosedError, ContextError, UsageError
from causal_attn.json_text import shown
from causal_attn.runtime.engine.prefixes import Prefixes
from causal_attn.runtime.engine.rounds import Rounds
from causal_attn.runtime.engine.stream import Stream
from causal_attn.runtime.engine.work import Counts, Tally, Work
from causal_attn.runtime.generate.answer import Options, Request
from causal_attn.runtime.generate.generator import Generator

__all__ = ["Engine"]


class Engine:
    """Continuous batching over one model: requests join and leave between two steps.

    Requests begin in the order in which they came, and every running one gets one token a round.
    The tokens of a request do not depend on its neighbours: rows of a batch are independent, and
    what another request left behind is never read. Kernels may sum in another order in a batch of
    another size, so that logits differ in their last bits: greedy tokens are those of a request
    that runs alone, except where two logits lie that near to each other.

    Args:
        generator: The model; `close` closes it.
        max_running: Most requests in the batch, >= 1; no more than the contract allows.
        max_waiting: Most requests that wait for a place, >= 0; one more is refused.
        max_cached_tokens: Most tokens that the batch may hold, padding included, >= 1; ``None``:
            any number. A request counts with its prompt and everything it may generate.
        prefill_chunk: Tokens of a prompt between two steps of the batch, >= 1.
        prefix_tokens: Tokens of earlier prompts that are kept for those that begin alike, >= 0.

    Raises:
        UsageError: An argument is out of its range.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        max_running: int = 16,
        max_waiting: int = 64,
        max_cached_tokens: int | None = None,
        prefill_chunk: int = 128,
        prefix_tokens: int = 4096,
    ) -> None:
        for name, value, least in (
            ("max_running", max_running, 1),
            ("max_waiting", max_waiting, 0),
            ("max_cached_tokens", 1 if max_cached_tokens is None else max_cached_tokens, 1),
            ("prefill_chunk", prefill_chunk, 1),
            ("prefix_tokens", prefix_tokens, 0),
        ):
            if type(value) is not int or value < least:
                raise UsageError(f"`{name}` must be an integer >= {least}, got {value!r}.")
        if not isinstance(generator, Generator):
            raise UsageError(
                f"`generator` must be a Generator, got {shown(generator)}. Use "
                "Generator.open(path)."
            )
        self.generator = generator
        most = generator.decoder.most
        self._most = max_running if most is None else min(max_running, most)
        self._queue, self._cached = max_waiting, max_cached_tokens
        self._context = generator.start().room
        self._tally = Tally()
        prefixes = Prefixes(generator.decoder, prefix_tokens, self._context)
        self._rounds = Rounds(generator.decoder, prefixes, prefill_chunk, self._tally)
        self._running = 0
        self._waiting: deque[Work] = deque()
        self._changed = threading.Condition()
        self._closing = self._abandoning = False
        self._thread = threading.Thread(target=self._run, name="causal_attn engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        seconds: float | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Ask for the continuation of `prompt`; returns at once.

        Args:
            prompt: Text, or at least one token.
            seconds: From now until it is ended with `StoppedError`; ``None``: no deadline.
            options: As in `Generator.generate`.

        Raises:
            UsageError: An argument is wrong, or the request could never fit into
                `max_cached_tokens`.
            ContextError: The prompt is longer than the context.
            BusyError: `max_waiting` requests are waiting.
            ClosedError: The engine was closed.
        """
        request, stream = self.generator.request(prompt, **options), Stream(seconds)
        work = Work(request, stream, self._reserved(request), self._context, self._tally)
        with self._changed:
            if self._closing:
                raise ClosedError("The engine must be open, got a request after close().")
            if not self._thread.is_alive():
                raise ClosedError(
                    "The engine must be asked in the process that made it, got a request after a "
                    "fork. Open and make it in each worker."
                )
            free = self._most - self._running
            if len(self._waiting) >= self._queue + free:
                raise BusyError(
                    f"At most {self._queue} requests may wait, got one more. Send it again later."
                )
            self._waiting.append(work)
            self._changed.notify()
        return stream

    @property
    def counts(self) -> Counts:
        """What there is now, and what was."""
        with self._changed:
            return self._tally.counts(waiting=len(self._waiting), running=self._running)

    @property
    def open(self) -> bool:
        """Whether it takes requests: it was not closed, and its thread lives."""
        return not self._closing and self._thread.is_alive()

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and return when there are none; a second call does nothing.

        Args:
            drain: Whether those that were taken are answered first; else they end with
                `ClosedError`.
        """
        with self._changed:
            self._closing = True
            self._abandoning = self._abandoning or not drain
            self._changed.notify()
        self._thread.join()
        self.generator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error nobody reads the streams any more.
        self.close(drain=kind is None)

    def __reduce__(self) -> NoReturn:
        raise UsageError("An Engine must stay in its process, got pickled or copied.")

    def _reserved(self, request: Request) -> int:
        """Tokens that the request may have in the cache at most; 0 where nobody asks."""
        prompt, limit, context = len(request.ids), request.answer.limit, self._context
        if context is not None and prompt > context:
            raise ContextError(
                f"`prompt` must have at most {context} tokens, got {prompt}.", request.ids
            )
        if self._cached is None:
            return 0
        most = [size for size in (context, limit and prompt + limit) if size is not None]
        if not most:
            raise UsageError(
                "`max_new_tokens` must be given with `max_cached_tokens` and a model without a "
                "context length: nobody knows how much the request may need."
            )
        if min(most) > self._cached:
            raise UsageError(
                f"`prompt` and `max_new_tokens` must be at most {self._cached} tokens together, "
                f"got {min(most)}: more is never in the cache."
            )
        return min(most)

    def _run(self) -> None:
        try:
            while self._ready():
                self._admit()
                self._rounds.run()
                self._running = len(self._rounds.works)
        # Whatever ended the thread: no stream may wait for one that is gone.
        finally:
            with self._changed:
                self._closing = True
                left = [*self._rounds.works, *self._waiting]
                self._waiting.clear()
                self._running = 0
            for work in left:
                work.end(ClosedError("The engine was closed before the answer."))

    def _ready(self) -> bool:
        """Wait for something to do; False once there is nothing to wait for."""
        with self._changed:
            self._changed.wait_for(lambda: self._running or self._waiting or self._closing)
            return not self._abandoning and bool(self._running or self._waiting)

    def _admit(self) -> None:
        """Drop what nobody waits for any more, and let the next prompt in where it fits."""
        with self._changed:
            for work in self._waiting:
                work.end_if_unwanted()
            self._waiting = deque(work for work in self._waiting if not work.over)
            works = self._rounds.works
            if not (self._waiting and self._rounds.takes_a_prompt and len(works) < self._most):
                return
            longest = max(work.reserved for work in (*works, self._waiting[0]))
            if self._cached is None or (len(works) + 1) * longest <= self._cached:
                self._rounds.begin(self._waiting.popleft())
                self._running = len(works) + 1
