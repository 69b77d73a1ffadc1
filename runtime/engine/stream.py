"""The tokens of one request, for whoever waits for them: a thread or an event loop."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Self

from causal_attn.errors import UsageError
from causal_attn.runtime.generate.answer import Token

__all__ = ["Stream"]


class Stream:
    """Iterate it with ``for`` or ``async for``, once; each token comes as it was generated.

    Leaving the loop early does not end the request: `cancel` does. An error of the request is
    raised where the next token would come.

    Args:
        seconds: From now until the request is ended, > 0; ``None``: no deadline.

    Raises:
        UsageError: `seconds` is no such number.
    """

    def __init__(self, seconds: float | None = None) -> None:
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise UsageError(f"`seconds` must be > 0 or None, got {seconds!r}.")
        # An int may be larger than any float.
        left = math.inf if seconds is None else min(seconds, sys.float_info.max)
        self.deadline = time.monotonic() + left
        self._changed = threading.Condition()
        self._came: deque[Token] = deque()
        self._over = False
        self._error: BaseException | None = None
        self._cancelled = False
        self._wakes: list[Callable[[], object]] = []

    def cancel(self) -> None:
        """Nobody wants the rest: the engine lets go of it before its next step."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def came(self) -> list[Token]:
        """Tokens that wait to be taken, taken: none of them is given again."""
        with self._changed:
            tokens = list(self._came)
            self._came.clear()
        return tokens

    def put(self, token: Token) -> None:
        """The engine's side: one more came; the last one has `Token.finish`."""
        self._add(token, over=token.finish is not None)

    def end(self, error: BaseException | None = None) -> None:
        """The engine's side: nothing more comes, because of `error` or of `cancel`."""
        self._add(None, over=True, error=error)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        with self._changed:
            self._changed.wait_for(lambda: self._came or self._over)
            token = self._taken()
        if token is None:
            raise StopIteration
        return token

    def __aiter__(self) -> AsyncIterator[Token]:
        return self

    async def __anext__(self) -> Token:
        loop = asyncio.get_running_loop()
        while True:
            ready = asyncio.Event()
            with self._changed:
                if self._came or self._over:
                    token = self._taken()
                    break
                self._wakes.append(partial(loop.call_soon_threadsafe, ready.set))
            await ready.wait()
        if token is None:
            raise StopAsyncIteration
        return token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _taken(self) -> Token | None:
        if self._came:
            return self._came.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def _add(self, token: Token | None, *, over: bool, error: BaseException | None = None) -> None:
        with self._changed:
            if self._over:
                return
            if token is not None:
                self._came.append(token)
            self._over, self._error = over, error
            self._changed.notify_all()
            wakes, self._wakes = self._wakes, []
        woken = [_wakes(wake) for wake in wakes]
        if woken and not any(woken):
            self._cancelled = True


def _wakes(wake: Callable[[], object]) -> bool:
    """Whether there was someone to wake: the loop that waited may be closed."""
    try:
        wake()
    except RuntimeError:
        return False
    return True
