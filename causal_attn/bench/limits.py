"""What the machine could do: the rate of its matrix products and of its reads, measured.

A prefill cannot be faster than the machine multiplies matrices, nor a decode step faster than it
reads the keys and values. Both rates come from the same run as the systems, from a process that
takes turns with them: a machine shared with others is not as fast as its data sheet. The best
rate seen counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from causal_attn.bench.cases import Case, Mode
from causal_attn.machine.provider import Provider

__all__ = ["LIMIT_UNITS", "LimitProbe", "limit_seconds", "work"]

LIMIT_UNITS = {Mode.PREFILL: "flop/s", Mode.DECODE: "byte/s"}

_PRODUCT_SIZE = {"cpu": 1536, "gpu": 8192}
"""Rows of the square matrices: large enough for the full rate, small enough for a short turn."""


class LimitProbe:
    """Runs the work whose rate is the limit of a case."""

    def __init__(self, provider: Provider, case: Case) -> None:
        import torch

        self._torch = torch
        self._device = "cuda" if provider.device == "gpu" else "cpu"
        dtype = {"float32": torch.float32, "float16": torch.float16}[case.dtype]
        self.call: Callable[[], Any]
        if case.mode is Mode.PREFILL:
            size = _PRODUCT_SIZE[provider.device]
            left, right = (torch.randn(size, size, device=self._device) for _ in range(2))
            left, right = left.to(dtype), right.to(dtype)
            self.work = 2 * size**3
            self.call = lambda: left @ right
        else:
            # As many bytes as the step reads, again and again, as the step does: what fits into
            # the processor's cache is read from there by both.
            numbers = torch.randn(case.read_bytes // 4, device=self._device)
            self.work = numbers.numel() * 4
            self.call = numbers.sum

    def wait(self) -> None:
        """Return when everything called is done."""
        if self._device == "cuda":
            self._torch.cuda.synchronize()


def work(case: Case) -> int:
    """What of the limiting kind a call must do: floating point operations, or bytes to read."""
    return case.flops if case.mode is Mode.PREFILL else case.read_bytes


def limit_seconds(case: Case, rate: float) -> float:
    """The least time of a call at `rate`, in `LIMIT_UNITS`."""
    return work(case) / rate
