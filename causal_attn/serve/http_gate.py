"""The gate in front of the HTTP application, as ASGI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from causal_attn.serve.failures import Failure, RequestError, failure_of
from causal_attn.serve.gate import Gate, Passage
from causal_attn.serve.settings import Limits

__all__ = ["PASSAGE", "HttpGate", "error_body", "extra_headers"]

PASSAGE = "causal_attn.passage"
"""Where a request's scope has its `Passage`."""

LINGER_SECONDS = 1.0
"""How long what a client still sends is read and dropped once its request was refused."""

OPEN = ("/v2/health/live", "/v2/health/ready")
"""What an orchestrator asks: it has no token, and asks a server that is stopping too."""

_LOOKING = ("/page/", "/metrics")
"""Begins the paths that only look on."""


class HttpGate:
    """Lets requests through to `app`, and answers for what it refuses or what escapes.

    Args:
        app: The application.
        gate: Counts, and knows the token.
        limits: Of a request.
        public: Paths that need no token and are not counted, besides those of health.
    """

    def __init__(
        self, app: ASGIApp, gate: Gate, limits: Limits, public: Iterable[str] = ()
    ) -> None:
        self._app, self._gate, self._limits = app, gate, limits
        self._open = frozenset({*OPEN, *public})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        what = f"{scope['method']} {scope['path']}"
        # Their times would hide those of the requests that they are there to show.
        protocol = "page" if scope["path"].startswith(_LOOKING) else "http"
        with self._gate.pass_through(protocol, what, headers) as passage:
            body = _Body(receive, self._limits)
            answer = _Answer(send, passage, body)
            scope[PASSAGE] = passage
            try:
                self._gate.check(headers)
                _check_headers(headers, self._limits)
                await self._app(scope, body.receive, answer.send)
            # Whatever a handler did not foresee is a sentence to the client, the rest to the log.
            except Exception as error:  # noqa: BLE001
                # A handler's own answer may have gone before its exception comes through.
                if passage.outcome == "ok":
                    passage.failed(error)
                    await answer.fail(scope["path"], failure_of(error))


def error_body(path: str, failure: Failure) -> bytes:
    """`failure` as the clients of `path` read errors."""
    if path.startswith("/v2"):
        return orjson.dumps({"error": failure.message})
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    error = {"message": failure.message, "type": kind, "param": None, "code": failure.kind}
    return orjson.dumps({"error": error})


def extra_headers(failure: Failure) -> dict[str, str]:
    """Headers that say what to do about `failure`."""
    if failure.status is HTTPStatus.SERVICE_UNAVAILABLE:
        return {"retry-after": "1"}
    if failure.status is HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": "Bearer"}
    return {}


class _Answer:
    """What goes out: each answer has the request's id, and begins once."""

    def __init__(self, send: Send, passage: Passage, asked: _Body) -> None:
        self._send, self._passage, self._asked = send, passage, asked
        self._begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            identity = (b"x-request-id", self._passage.identity.encode())
            message = {**message, "headers": [*message["headers"], identity]}
        await self._send(message)

    async def fail(self, path: str, failure: Failure) -> None:
        if self._begun:
            # The status has gone: to close before the end says that this is not all.
            raise ConnectionAbortedError("the answer was not finished")
        body = error_body(path, failure)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **extra_headers(failure),
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send(
            {"type": "http.response.start", "status": int(failure.status), "headers": raw}
        )
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        # The answer is out whole, by its length. To close while bytes are unread would reset the
        # connection, and the client would lose the answer (RFC 9112, 9.6).
        await self._asked.drop()
        await self.send({"type": "http.response.body", "body": b""})


class _Body:
    """What comes in, no more of it and no slower than it may."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._bytes = 0
        self._deadline = asyncio.get_running_loop().time() + limits.seconds
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            # Nothing but the end of the connection is left to be told.
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message: dict[str, Any] = dict(await self._receive())
        except TimeoutError:
            raise RequestError(
                f"The body must come within {self._limits.seconds} seconds, got some of it.",
                HTTPStatus.REQUEST_TIMEOUT,
            ) from None
        self._bytes += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._bytes > self._limits.max_request_bytes:
            raise _too_large(self._limits)
        return message

    async def drop(self) -> None:
        """Read what is left of it for a while, and keep nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._whole:
                    self._whole = not (await self._receive()).get("more_body", False)


def _check_headers(headers: dict[str, str], limits: Limits) -> None:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise RequestError("`Content-Length` must be a number.")
    if int(length) > limits.max_request_bytes:
        raise _too_large(limits)
    if headers.get("content-encoding", "identity") != "identity":
        raise RequestError(
            "`Content-Encoding` must be left out: a small body may unpack to any size.",
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        )


def _too_large(limits: Limits) -> RequestError:
    return RequestError(
        f"The body must be at most {limits.max_request_bytes} bytes, got more.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )
