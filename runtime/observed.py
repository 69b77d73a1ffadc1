"""Sessions whose calls are told to a function, for metrics: ``load(..., on_call=…)``.

::

    session = load("causal_attention", on_call=lambda call: histogram.observe(call.seconds))

A session without `on_call` is a plain `Session`: it has nothing of this in its way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.runtime.binding import Binding
from causal_attn.runtime.limits import named_sizes
from causal_attn.runtime.ort import OrtValue
from causal_attn.runtime.outputs import Outputs
from causal_attn.runtime.session import Session

__all__ = ["Call", "ObservedSession"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a session or a binding that is over.

    Attributes:
        seconds: From the call to its result or error, the checks of its arrays included.
        sizes: Of the named dims of the inputs, ``{"batch": 1, "tokens": 16, …}``; of a call that
            was refused, those that could be read.
        queued: Other calls of this session that were under way when this one began.
        error: Name of the exception's class, such as ``InputError``; ``None``: there was none.
    """

    seconds: float
    sizes: Mapping[str, int]
    queued: int
    error: str | None


class ObservedSession(Session):
    """A `Session` that tells `on_call` of each call, in the thread that called.

    What `on_call` raises reaches the caller, in place of the result. Arguments are those of
    `Session`.
    """

    def __init__(self, *arguments: Any, on_call: Callable[[Call], object], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._on_call = on_call
        self._running = 0
        self._lock = threading.Lock()
        self._input_names = [tensor.name for tensor in self.contract.inputs]

    def __call__(self, /, *arrays: NDArray[Any], **named: NDArray[Any]) -> Outputs:
        """As `Session.__call__`."""
        with self._watched({**dict(zip(self._input_names, arrays, strict=False)), **named}):
            return super().__call__(*arrays, **named)

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """As `Session.run`."""
        with self._watched(feeds):
            return super().run(feeds, outputs)

    def bind(
        self, feeds: Mapping[str, NDArray[Any]], *, share: Mapping[str, str] | None = None
    ) -> Binding:
        """As `Session.bind`; every `Binding.run` is a call."""
        binding = super().bind(feeds, share=share)
        binding.watched = partial(self._watched, feeds)
        return binding

    def run_shared(
        self, values: Mapping[str, Any], *, share: Mapping[str, str] | None = None
    ) -> list[Any]:
        """As `Session.run_shared`."""
        with self._watched(values):
            return super().run_shared(values, share=share)

    @contextmanager
    def _watched(self, feeds: object) -> Iterator[None]:
        sizes = named_sizes(self.contract, _shapes(feeds))
        with self._lock:
            queued, self._running = self._running, self._running + 1
        error = None
        start = time.perf_counter()
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            seconds = time.perf_counter() - start
            with self._lock:
                self._running -= 1
            self._on_call(Call(seconds=seconds, sizes=sizes, queued=queued, error=error))


def _shapes(feeds: object) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays and the shared values in `feeds`, which nobody has checked yet."""
    if not isinstance(feeds, Mapping):
        return {}
    shapes = {}
    for name, array in feeds.items():
        if isinstance(array, np.ndarray):
            shapes[name] = array.shape
        elif isinstance(array, OrtValue):
            shapes[name] = tuple(array.shape())
    return shapes
