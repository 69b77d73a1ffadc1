"""What the machine could do: the rate of its matrix products and of its reads, measured.

A prefill cannot be faster than the machine multiplies matrices, nor a decode step faster than it
reads the keys and values. Both rates come from the same run as the systems, from a process that
takes turns with them: a machine shared with others is not as fast as its data sheet. One library's
kernel is not the machine's limit either: several are tried at several sizes, and the best rate
that any of them reached counts, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from causal_attn.bench.cases import Case, Mode
from causal_attn.bench.exporter import product_session
from causal_attn.machine.provider import Provider
from causal_attn.timing.turn import measure_turn

__all__ = ["LIMIT_UNITS", "LimitProbe", "limit_seconds", "work"]

LIMIT_UNITS = {Mode.PREFILL: "flop/s", Mode.DECODE: "byte/s"}

_SIZES = {"cpu": (512, 1024, 1536, 2048), "cuda": (8192,)}
"""Rows of the square matrices: from what caches hold to where the full rate is reached."""

_NO_CACHE_BYTES = 1 << 29
"""More than any processor's cache: read from memory each time."""

_KEPT = 2
"""Ways that are tried in every turn; the first one tries all and finds the best."""


class _Way:
    """One piece of work whose rate may be the limit."""

    def __init__(self, name: str, work: int, call: Callable[[], Any]) -> None:
        self.name, self.work, self.call = name, work, call
        self.rate = 0.0


class LimitProbe:
    """Runs the work whose rate is the limit of a case.

    Args:
        provider: CUDA runs torch on the GPU, everything else is the CPU.
        case: Says which work, and its dtype.
    """

    def __init__(self, provider: Provider, case: Case) -> None:
        import torch

        self._torch = torch
        self._device = provider.memory
        self._grouped = provider.memory == "cuda"
        self._dtype = {"float32": torch.float32, "float16": torch.float16}[case.dtype]
        self._ways = list(
            self._products(self._device)
            if case.mode is Mode.PREFILL
            else self._reads(case.read_bytes)
        )

    def measure(self, seconds: float) -> tuple[float, str]:
        """The best rate of a turn of about `seconds`, in `LIMIT_UNITS`, and what reached it."""
        for way in self._ways:
            share = seconds / len(self._ways)
            samples = measure_turn(way.call, self._wait, share, grouped=self._grouped)
            # A limit is what the machine can do, not what it did on average.
            way.rate = way.work / min(samples)
        self._ways.sort(key=lambda way: -way.rate)
        del self._ways[_KEPT:]
        return self._ways[0].rate, self._ways[0].name

    def _products(self, device: str) -> Iterator[_Way]:
        torch = self._torch
        for size in _SIZES[device]:
            left, right = (torch.randn(size, size, device=self._device) for _ in range(2))
            left, right = left.to(self._dtype), right.to(self._dtype)
            flops = 2 * size**3
            yield _Way(f"torch, {size} rows", flops, partial(torch.matmul, left, right))
            if device == "cuda" or self._dtype is not torch.float32:
                continue
            feeds = {"a": left.numpy(), "b": right.numpy()}
            yield _Way(f"numpy, {size} rows", flops, partial(np.matmul, *feeds.values()))
            run = product_session().run
            yield _Way(f"onnxruntime, {size} rows", flops, partial(run, None, feeds))

    def _reads(self, read_bytes: int) -> Iterator[_Way]:
        torch = self._torch
        # As many bytes as the step reads, again and again, as the step does: what fits into the
        # processor's cache is read from there by both.
        again = torch.randn(read_bytes // 4, device=self._device)
        yield _Way("torch, the same bytes again", again.numel() * 4, again.sum)
        beyond = torch.randn(_NO_CACHE_BYTES // 4, device=self._device)
        yield _Way("torch, beyond any cache", _NO_CACHE_BYTES, beyond.sum)
        if self._device == "cpu":
            # In one thread: what fits into the cache of one core is not shared out.
            numbers = np.ones(read_bytes // 4, np.float32)
            yield _Way("numpy, the same bytes again", numbers.nbytes, numbers.max)

    def _wait(self) -> None:
        """Return when everything called is done."""
        if self._device == "cuda":
            self._torch.cuda.synchronize()


def work(case: Case) -> int:
    """What of the limiting kind a call must do: floating point operations, or bytes to read."""
    return case.flops if case.mode is Mode.PREFILL else case.read_bytes


def limit_seconds(case: Case, rate: float) -> float:
    """The least time of a call at `rate`, in `LIMIT_UNITS`."""
    return work(case) / rate
