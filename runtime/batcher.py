"""Calls of many threads and tasks, joined into one along the batch and split again.

::

    with Batcher(session, delay_seconds=0.002) as batcher:
        output, weights = batcher(q, k, v)  # from any thread
        output, weights = await batcher.call_async(q, k, v)  # from any event loop

One call of eight sequences takes less time than eight calls of one. It is the same only where the
sequences of a batch do not reach each other, which is what the certificate must say.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import BusyError, ClosedError, StoppedError, UsageError
from causal_attn.json_text import shown
from causal_attn.package.dims import DimExpression
from causal_attn.runtime.cancellation import CURRENT, Cancellation, stopped_by
from causal_attn.runtime.outputs import Outputs, identifiers, outputs_type
from causal_attn.runtime.session import Session

__all__ = ["Batcher"]

_BATCH = "batch"
_CHECKS = ("batch proof", "batch is independent")
"""What `causal_attn.verify` calls the checks that sequences do not reach each other."""


class Batcher:
    """Joins calls whose arrays differ in nothing but the batch and their values.

    Calls are answered in the order in which they came, as far as they join. Each gets the rows
    that are its own, in memory of its own. They are what the call alone would give, but for the
    last bits: a kernel may sum in another order in a batch of another size.

    A call that is refused, ended or fails is an error for its own caller alone: where a joined
    call fails, each is run by itself.

    Any number of threads and event loops may use it. It has one thread of its own, and ends with
    `close`; the session stays open.

    Args:
        session: Its contract has a dim ``batch`` in every input and output, and its certificate
            says that the sequences of a batch are independent.
        max_batch: Most sequences of a joined call, >= 1, and no more than the contract allows. A
            single call may have more, and is then run alone.
        delay_seconds: How long a call may wait for others, >= 0. While another one runs it waits
            in any case; 0 joins those that came meanwhile.
        max_waiting: Most calls that wait, >= 1; one more is refused.

    Raises:
        UsageError: An argument is out of its range, or the sequences of `session` cannot be
            joined.
    """

    def __init__(
        self,
        session: Session,
        *,
        max_batch: int = 16,
        delay_seconds: float = 0.002,
        max_waiting: int = 256,
    ) -> None:
        if not isinstance(session, Session):
            raise UsageError(f"`session` must be a Session, got {shown(session)}.")
        for name, value in (("max_batch", max_batch), ("max_waiting", max_waiting)):
            if type(value) is not int or value < 1:
                raise UsageError(f"`{name}` must be an integer >= 1, got {shown(value)}.")
        number = isinstance(delay_seconds, int | float) and not isinstance(delay_seconds, bool)
        if not number or not 0 <= delay_seconds <= threading.TIMEOUT_MAX:
            raise UsageError(
                f"`delay_seconds` must be a finite number >= 0, got {shown(delay_seconds)}."
            )
        _require_independent(session)
        self._session = session
        self._inputs, self._outputs = (
            {tensor.name: tensor.dims.index(_BATCH) for tensor in tensors}
            for tensors in (session.contract.inputs, session.contract.outputs)
        )
        self._type = outputs_type(identifiers(tuple(self._outputs)))
        _, most = session.contract.bounds.get(_BATCH, (1, None))
        self._most = max_batch if most is None else min(max_batch, most)
        self._delay, self._queue = delay_seconds, max_waiting
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closing = self._abandoning = False
        self._thread = threading.Thread(target=self._run, name="causal_attn batcher", daemon=True)
        self._thread.start()

    def __call__(self, /, *arrays: NDArray[Any], **named: NDArray[Any]) -> Outputs:
        """As `Session.__call__`, joined with others; a `Cancellation` ends it alone.

        Raises:
            InputError: As in `Session.__call__`.
            BusyError: `max_waiting` calls are waiting.
            ClosedError: The batcher or its session was closed.
            StoppedError: A `Cancellation` ended the call.
            EngineError: ONNX Runtime failed.
        """
        request = self._request(arrays, named)
        with stopped_by(CURRENT.get(), request):
            self._submit(request)
            return request.future.result()

    async def call_async(self, /, *arrays: NDArray[Any], **named: NDArray[Any]) -> Outputs:
        """As a call, from a task of an event loop: the loop goes on meanwhile.

        A task that is cancelled takes its call back.

        Raises:
            CausalAttnError: As in a call.
        """
        request = self._request(arrays, named)
        with stopped_by(CURRENT.get(), request):
            self._submit(request)
            return await asyncio.wrap_future(request.future)

    @property
    def waiting(self) -> int:
        """How many calls wait now, those that run not counted."""
        return len(self._waiting)

    def close(self, *, drain: bool = True) -> None:
        """Take no more calls, and return when there are none; a second call does nothing.

        Args:
            drain: Whether those that wait are answered first; else they end with `ClosedError`.

        Raises:
            UsageError: `drain` is neither True nor False; nothing was closed.
        """
        if not isinstance(drain, bool):
            raise UsageError(f"`drain` must be True or False, got {shown(drain)}.")
        with self._changed:
            self._closing = True
            self._abandoning = self._abandoning or not drain
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error nobody waits for answers any more.
        self.close(drain=kind is None)

    def __reduce__(self) -> NoReturn:
        raise UsageError("A Batcher must stay in its process, got pickled or copied.")

    def _request(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> _Request:
        return _Request(self._session.check(*arrays, **named), self._inputs)

    def _submit(self, request: _Request) -> None:
        with self._changed:
            if self._closing:
                raise ClosedError("The batcher must be open, got a call after close().")
            if not self._thread.is_alive():
                raise ClosedError(
                    "The batcher must be called in the process that made it, got a call after a "
                    "fork. Load and make it in each worker."
                )
            self._drop_ended()
            if len(self._waiting) >= self._queue:
                raise BusyError(
                    f"At most {self._queue} calls may wait, got one more. Send it again later."
                )
            self._waiting.append(request)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while batch := self._next():
                self._answer(batch)
        # Whatever ended the thread: no caller may wait for one that is gone.
        finally:
            with self._changed:
                self._closing = True
                left, self._waiting = self._waiting, deque()
            for request in left:
                request.fail(ClosedError("The batcher was closed before the call."))

    def _next(self) -> list[_Request]:
        """Wait for calls that are to be run now, as one; none once the batcher is closed."""
        with self._changed:
            while True:
                self._drop_ended()
                if self._abandoning or (self._closing and not self._waiting):
                    return []
                if not self._waiting:
                    self._changed.wait()
                    continue
                batch, full = self._joining()
                left = batch[0].came + self._delay - time.monotonic()
                if full or left <= 0 or self._closing:
                    chosen = set(map(id, batch))
                    self._waiting = deque(r for r in self._waiting if id(r) not in chosen)
                    return batch
                self._changed.wait(left)

    def _joining(self) -> tuple[list[_Request], bool]:
        """The oldest call and those that join it; whether there is no room for more."""
        first, *others = self._waiting
        batch, rows = [first], first.rows
        for request in others:
            if request.key != first.key:
                continue
            if rows + request.rows > self._most:
                return batch, True
            batch.append(request)
            rows += request.rows
        return batch, rows >= self._most

    def _drop_ended(self) -> None:
        if any(request.future.done() for request in self._waiting):
            self._waiting = deque(r for r in self._waiting if not r.future.done())

    def _answer(self, batch: Sequence[_Request]) -> None:
        """Run `batch` as one call, or each by itself where that fails."""
        limit = Cancellation()

        def stop_if_unwanted(_: Future[Outputs]) -> None:
            if all(request.future.done() for request in batch):
                limit.cancel()

        for request in batch:
            request.future.add_done_callback(stop_if_unwanted)
        try:
            with limit:
                results = self._session.run(_joined([r.feeds for r in batch], self._inputs))
            answers = self._split(results, [request.rows for request in batch])
        # Whatever it is, `sys.exit` in `on_call` too, belongs to a caller: here it would end the
        # thread for all of them.
        except BaseException as error:  # noqa: BLE001
            if len(batch) == 1:
                batch[0].fail(error)
                return
            for request in batch:
                self._answer([request])
            return
        for request, answer in zip(batch, answers, strict=True):
            request.succeed(answer)

    def _split(self, results: Mapping[str, NDArray[Any]], counts: Sequence[int]) -> list[Outputs]:
        """The rows of each of those that were joined, copied; `results` itself for one alone."""
        if len(counts) == 1:
            return [self._type._make(results.values())]
        ends = np.cumsum(counts)
        return [
            self._type._make(
                np.take(array, range(end - count, end), self._outputs[name])
                for name, array in results.items()
            )
            for count, end in zip(counts, ends, strict=True)
        ]


class _Request:
    """One call that waits or runs. It ends like ONNX Runtime's own do: by `terminate`.

    Attributes:
        feeds: As the contract wants them.
        rows: Sequences.
        key: The other sizes of its inputs: those of one key join.
        came: When, by the monotonic clock.
        future: What its caller waits for.
    """

    __slots__ = ("came", "feeds", "future", "key", "rows")

    def __init__(self, feeds: Mapping[str, NDArray[Any]], axes: Mapping[str, int]) -> None:
        self.feeds = feeds
        name, axis = next(iter(axes.items()))
        self.rows = feeds[name].shape[axis]
        self.key = tuple(
            size
            for name, axis in axes.items()
            for size in (*feeds[name].shape[:axis], *feeds[name].shape[axis + 1 :])
        )
        self.came = time.monotonic()
        self.future: Future[Outputs] = Future()

    @property
    def terminate(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.done()

    @terminate.setter
    def terminate(self, _: bool) -> None:
        self.fail(StoppedError("The call was ended."))

    def succeed(self, result: Outputs) -> None:
        # Its caller may have gone meanwhile.
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


def _joined(
    feeds: Sequence[Mapping[str, NDArray[Any]]], axes: Mapping[str, int]
) -> dict[str, NDArray[Any]]:
    if len(feeds) == 1:
        return dict(feeds[0])
    return {
        name: np.concatenate([one[name] for one in feeds], axis) for name, axis in axes.items()
    }


def _require_independent(session: Session) -> None:
    contract = session.contract
    for tensor in (*contract.inputs, *contract.outputs):
        others = [dim for dim in tensor.dims if isinstance(dim, str) and dim != _BATCH]
        if tensor.dims.count(_BATCH) != 1 or any(
            _BATCH in DimExpression.parse(dim).names for dim in others
        ):
            raise UsageError(
                "`session` must be of a model with one dim 'batch' in every input and output, got "
                f"{list(tensor.dims)} for `{tensor.name}`: it cannot be joined along it."
            )
    checks = session.certificate.checks if session.certificate is not None else ()
    found = [check.passed for check in checks if check.name in _CHECKS]
    if not found or not all(found):
        raise UsageError(
            "`session` must have a certificate that says that sequences of a batch are "
            f"independent, got none of the checks {list(_CHECKS)} that passed. Verify the model "
            "with a dim 'batch'."
        )
