"""A turn times calls after a warm-up, and memory is that of the call alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from causal_attn.timing.memory import added_peak_bytes
from causal_attn.timing.turn import measure_turn


def test_turn_times_a_call_and_warms_up_first() -> None:
    calls: list[float] = []
    clock = _clock(calls)
    samples = measure_turn(lambda: next(clock), lambda: None, 0.02, grouped=False)
    assert 0 < len(samples) < len(calls)
    assert all(seconds >= 0.001 for seconds in samples)
    waits: list[int] = []
    measure_turn(lambda: calls.append(0), lambda: waits.append(0), 0.01, grouped=True)
    assert len(waits) < len(calls)


def test_memory_sees_what_was_freed_again_but_not_what_was_there() -> None:
    held = np.ones(40_000_000, np.uint8)
    added = added_peak_bytes(lambda: np.ones(60_000_000, np.uint8).sum())
    assert 55_000_000 < added < 80_000_000
    assert added_peak_bytes(held.sum) < 20_000_000


def _clock(calls: list[float]) -> Iterator[float]:
    while True:
        calls.append(time.perf_counter())
        time.sleep(0.001)
        yield calls[-1]
