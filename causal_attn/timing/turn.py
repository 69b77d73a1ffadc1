"""One turn of one system: warm up, then time calls until the turn's time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["measure_turn"]

_GROUP_SECONDS = 0.001
_MOST_GROUPED = 200


def measure_turn(
    call: Callable[[], Any], wait: Callable[[], None], seconds: float, *, grouped: bool
) -> list[float]:
    """Seconds of a call, one figure a sample, over about `seconds`.

    Args:
        call: What is timed.
        wait: Returns when all calls are done.
        seconds: Length of the turn; at least one call is timed, however long it takes.
        grouped: Time groups of about a millisecond with one `wait` at their end. On a device a
            `wait` after every call would measure the way there and back, not the work.
    """
    # A process that was stopped has cold caches and sleeping threads: these calls wake them.
    start = time.perf_counter()
    while True:
        before = time.perf_counter()
        call()
        wait()
        now = time.perf_counter()
        last = now - before
        if now - start > seconds / 4:
            break
    size = max(1, min(_MOST_GROUPED, round(_GROUP_SECONDS / last))) if grouped else 1
    samples: list[float] = []
    start = time.perf_counter()
    while True:
        before = time.perf_counter()
        for _ in range(size):
            call()
        wait()
        now = time.perf_counter()
        samples.append((now - before) / size)
        if now - start > seconds:
            return samples
