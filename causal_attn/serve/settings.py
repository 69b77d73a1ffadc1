"""Where a server listens, and how much one request may ask of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from causal_attn.errors import UsageError

__all__ = ["Address", "Limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where a server listens.

    Attributes:
        host: A name or a number of this machine. The default can be reached from it alone.
        port: Of HTTP; 0 takes a free one.
        grpc_port: Of gRPC; 0 takes a free one.

    Raises:
        UsageError: A port is out of its range, or both are the same.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int = 8081

    def __post_init__(self) -> None:
        for name in ("port", "grpc_port"):
            _require(name, getattr(self, name), 0, 65_535)
        if self.port and self.port == self.grpc_port:
            raise UsageError(f"`port` and `grpc_port` must differ, got {self.port} for both.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much one request may ask for, and how many may wait.

    Attributes:
        max_request_bytes: Of a body or a gRPC message.
        max_tokens: Of a prompt; along the contract's dim of tokens, of a call with tensors.
        max_bytes: Of the inputs and outputs of a call with tensors, together.
        max_new_tokens: Of one answer of a language model.
        max_running: Calls, or answers of one language model, at a time.
        max_waiting: Those that wait for a place, for each model; one more gets 503.
        batch_delay_seconds: That a call with tensors may wait for others to be run with, where the
            certificate says that sequences are independent; ``None``: each runs alone.
        seconds: Until a request is ended, from the moment that it was taken.
        grace_seconds: That a server which was told to stop waits for what it took.

    Raises:
        UsageError: A limit is out of its range.
    """

    max_request_bytes: int = 64 << 20
    max_tokens: int = 65_536
    max_bytes: int = 1 << 30
    max_new_tokens: int = 4_096
    max_running: int = 16
    max_waiting: int = 64
    batch_delay_seconds: float | None = None
    seconds: float = 60.0
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_request_bytes", "max_tokens", "max_bytes"):
            _require(name, getattr(self, name), 1, 1 << 40)
        for name in ("max_new_tokens", "max_running"):
            _require(name, getattr(self, name), 1, 1 << 20)
        _require("max_waiting", self.max_waiting, 0, 1 << 20)
        delay = self.batch_delay_seconds
        if delay is not None and not 0 <= delay <= 1:
            raise UsageError(f"`batch_delay_seconds` must be from 0 to 1 or None, got {delay!r}.")
        for name in ("seconds", "grace_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UsageError(f"`{name}` must be a finite number > 0, got {value!r}.")


def _require(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"`{name}` must be an integer from {least} to {most}, got {value!r}.")
