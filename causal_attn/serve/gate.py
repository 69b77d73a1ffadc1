"""What every request passes before a handler sees it, over HTTP and over gRPC alike.

Whether it may come in (a token), whether it fits (its bytes), whether the server still takes any;
then it gets an id, a line in the log and a place in the metrics, and is counted until its last
byte has gone, so that a server that stops knows what it still owes.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from causal_attn.errors import ClosedError, UsageError
from causal_attn.serve.failures import RequestError, failure_of
from causal_attn.serve.metrics import IN_FLIGHT, REQUEST_SECONDS, REQUESTS

__all__ = ["Gate", "Passage", "say"]

_log = logging.getLogger("causal_attn.serve")

_IDENTITY = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Passage:
    """One request on its way.

    Attributes:
        identity: Its id: the client's, if it sent one that can be written into a log.
        outcome: ``ok``, or the kind of its `failure_of`.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.outcome = "ok"

    def failed(self, error: BaseException) -> None:
        """The answer was this error; what clients must not see goes to the log."""
        failure = failure_of(error)
        self.outcome = failure.kind
        if failure.status is HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error(
                json.dumps({"event": "failed", "request_id": self.identity}), exc_info=error
            )


class Gate:
    """Counts requests in and out, and refuses those that may not come in.

    Args:
        token: What clients must send as ``Authorization: Bearer …``; ``None``: nothing.

    Raises:
        UsageError: `token` is empty, or has characters that no header carries.
    """

    def __init__(self, token: str | None = None) -> None:
        if token is not None and not re.fullmatch(r"[!-~]{8,4096}", token):
            raise UsageError("`token` must be 8 to 4096 ASCII characters without spaces.")
        self._token = None if token is None else f"Bearer {token}".encode()
        self._taken = 0
        self._nobody = asyncio.Event()
        self._nobody.set()
        self.closing = False

    @contextmanager
    def pass_through(
        self, protocol: str, what: str, headers: Mapping[str, str]
    ) -> Iterator[Passage]:
        """The time that a request is inside; the block must let no exception out.

        Args:
            protocol: ``http`` or ``grpc``.
            what: Method and path, for the log.
            headers: Of the request, their names in lower case.
        """
        given = headers.get("x-request-id", "")
        passage = Passage(given if _IDENTITY.fullmatch(given) else uuid.uuid4().hex)
        started = time.perf_counter()
        self._taken += 1
        self._nobody.clear()
        IN_FLIGHT.inc()
        try:
            yield passage
        except BaseException:
            passage.outcome = "vanished"
            raise
        finally:
            self._taken -= 1
            if not self._taken:
                self._nobody.set()
            IN_FLIGHT.dec()
            seconds = time.perf_counter() - started
            REQUESTS.labels(protocol, passage.outcome).inc()
            REQUEST_SECONDS.labels(protocol).observe(seconds)
            say(
                "request",
                request_id=passage.identity,
                protocol=protocol,
                what=what,
                outcome=passage.outcome,
                seconds=round(seconds, 6),
            )

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that may not come in.

        Raises:
            ClosedError: The server is stopping.
            RequestError: It has not the token.
        """
        if self._token is not None:
            given = headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, self._token):
                raise RequestError(
                    "The request must carry this server's token as `Authorization: Bearer …`.",
                    HTTPStatus.UNAUTHORIZED,
                )
        if self.closing:
            raise ClosedError("The server is stopping.")

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing is inside, at most so long; whether that is so."""
        try:
            await asyncio.wait_for(self._nobody.wait(), seconds)
        except TimeoutError:
            return False
        return True


def say(event: str, **values: object) -> None:
    """One line of JSON in the log."""
    _log.info(json.dumps({"event": event, **values}))
