"""Ending calls that are running: from another thread, or at a deadline.

::

    with Cancellation(seconds=0.5) as limit:  # limit.cancel() from any thread, at any time
        output, weights = session(q, k, v)

It holds for every call that the block makes, of any session and any binding. ONNX Runtime looks
between two nodes of the graph and between two rounds of a loop whether to go on: a kernel that is
running is finished first.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import NoReturn, Protocol, Self

from causal_attn.errors import StoppedError, UsageError

__all__ = ["CURRENT", "Cancellation", "stopped_by"]


class RunOptions(Protocol):
    """``onnxruntime.RunOptions``, as far as it is used here."""

    terminate: bool


class Cancellation:
    """Ends the calls made inside its ``with`` block; usable by any number of threads at once.

    Once it has ended one it ends all later ones too: make a new one for the next piece of work.

    Args:
        seconds: From now until the calls are ended, > 0; ``None``: only `cancel` ends them.

    Raises:
        UsageError: `seconds` is no such number.
    """

    def __init__(self, *, seconds: float | None = None) -> None:
        if seconds is not None and not (
            isinstance(seconds, int | float)
            and not isinstance(seconds, bool)
            and 0 < seconds <= sys.float_info.max
        ):
            raise UsageError(f"`seconds` must be a finite number > 0 or None, got {seconds!r}.")
        self._seconds = seconds
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self._reason = ""
        self._running: dict[int, RunOptions] = {}

    def cancel(self) -> None:
        """End the calls that are running, and every later one. A second call does nothing."""
        self._stop("cancel() was called")

    @property
    def reason(self) -> str:
        """Why calls are ended now; ``""``: they are not."""
        if not self._reason and time.monotonic() >= self._deadline:
            self._stop(f"its {self._seconds} seconds were over")
        return self._reason

    def __enter__(self) -> Self:
        CURRENT.set((*CURRENT.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Blocks end in the reverse order, so that the last one of this thread is this one.
        CURRENT.set(CURRENT.get()[:-1])

    def __reduce__(self) -> NoReturn:
        raise UsageError("A Cancellation must stay in its process, got pickled or copied.")

    def _stop(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
            for options in self._running.values():
                options.terminate = True

    def _watch(self, options: RunOptions) -> None:
        with self._lock:
            self._running[id(options)] = options
            # It may have been ended since its reason was looked at.
            if self._reason:
                options.terminate = True
        if self._deadline < math.inf:
            _clock().watch(self)

    def _forget(self, options: RunOptions) -> None:
        with self._lock:
            del self._running[id(options)]
        if self._deadline < math.inf and not self._running:
            _clock().unwatch(self)


CURRENT: ContextVar[tuple[Cancellation, ...]] = ContextVar("cancellations", default=())
"""Those whose blocks the running code is in, the outermost first."""


@contextmanager
def stopped_by(cancellations: tuple[Cancellation, ...], options: RunOptions) -> Iterator[None]:
    """Let `cancellations` end the run with `options` that the block makes.

    Raises:
        StoppedError: One of them ended it, or had ended before it began.
    """
    for cancellation in cancellations:
        _require_none(cancellation.reason, None)
    try:
        for cancellation in cancellations:
            cancellation._watch(options)
        yield
    except Exception as error:
        for cancellation in cancellations:
            _require_none(cancellation.reason, error)
        raise
    finally:
        for cancellation in cancellations:
            cancellation._forget(options)


def _require_none(reason: str, error: Exception | None) -> None:
    if reason:
        raise StoppedError(
            f"The call must end before its Cancellation ends it, got stopped: {reason}. The "
            "session is as it was; call it again."
        ) from error


class _Clock:
    """One thread that ends what has passed its deadline, for all cancellations."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[Cancellation] = set()
        self._wakes = math.inf
        threading.Thread(target=self._run, name="causal_attn deadlines", daemon=True).start()

    def watch(self, cancellation: Cancellation) -> None:
        with self._changed:
            self._watched.add(cancellation)
            # Most deadlines lie behind that of an earlier call: the thread need not know of them.
            if cancellation._deadline < self._wakes:
                self._changed.notify()

    def unwatch(self, cancellation: Cancellation) -> None:
        """Let go of one whose calls are over: thousands come before the first is late."""
        with self._changed:
            # Another thread may have begun a call with it meanwhile.
            if not cancellation._running:
                self._watched.discard(cancellation)

    def _run(self) -> None:
        with self._changed:
            while True:
                # Reading the reason ends those whose time is over. One with nothing running is
                # watched again by its next call.
                self._watched = {one for one in self._watched if one._running and not one.reason}
                self._wakes = min((one._deadline for one in self._watched), default=math.inf)
                left = self._wakes - time.monotonic()
                self._changed.wait(min(max(left, 0), _LONGEST_WAIT_SECONDS))


_LONGEST_WAIT_SECONDS = 3600.0

_made: list[_Clock] = []
_making = threading.Lock()


def _clock() -> _Clock:
    with _making:
        if not _made:
            _made.append(_Clock())
        return _made[0]


# A thread does not survive a fork: the child makes its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_made.clear)
