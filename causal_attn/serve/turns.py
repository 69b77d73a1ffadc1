"""Calls of one session, so many at a time; a few may wait, and more are told to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from causal_attn.errors import BusyError
from causal_attn.runtime import Cancellation
from causal_attn.serve.settings import Limits

__all__ = ["Turns"]

Result = TypeVar("Result")


class Turns:
    """Runs blocking calls in threads of its own, for one event loop.

    Args:
        limits: How many wait, and how long one may take.
        places: How many run at a time.
    """

    def __init__(self, limits: Limits, places: int) -> None:
        self._limits, self._places = limits, places
        self._taken = 0
        self._pool = ThreadPoolExecutor(places, "causal_attn serve")

    @property
    def waiting(self) -> int:
        """Calls that were taken and have not begun."""
        return max(self._taken - self._places, 0)

    @property
    def running(self) -> int:
        """Calls that are running."""
        return min(self._taken, self._places)

    async def run(self, call: Callable[[], Result]) -> Result:
        """What `call` returns; its time begins now, while it waits.

        Raises:
            BusyError: As many wait as may.
            StoppedError: It did not end in time.
        """
        if self._taken >= self._places + self._limits.max_waiting:
            raise BusyError(
                f"At most {self._limits.max_waiting} requests may wait, got one more. Send it "
                "again later."
            )
        limit = Cancellation(seconds=self._limits.seconds)

        def limited() -> Result:
            with limit:
                return call()

        self._taken += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, limited)
        except asyncio.CancelledError:
            # Nobody waits for it any more: the thread is free at the next node of the graph.
            limit.cancel()
            raise
        finally:
            self._taken -= 1

    def close(self) -> None:
        """Let the threads go; calls that run are finished."""
        self._pool.shutdown(wait=True)
