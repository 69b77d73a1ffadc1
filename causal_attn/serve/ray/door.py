"""Where requests of a cluster come in: what a lost replica did not answer, another one does."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from causal_attn.errors import BusyError, CausalAttnError, StoppedError
from causal_attn.serve.failures import LostError, RequestError, failure_of
from causal_attn.serve.gate import Gate, Passage
from causal_attn.serve.http_gate import OPEN, PASSAGE, HttpGate, error_body
from causal_attn.serve.page import FILES
from causal_attn.serve.ray.sdk import (
    BackPressureError,
    DeploymentHandle,
    DeploymentUnavailableError,
    RayError,
    RayTaskError,
)
from causal_attn.serve.settings import Limits

__all__ = ["Door"]

LIVE, _ = OPEN
PAUSE_SECONDS = 0.1
"""Before a request goes to another replica: Ray learns meanwhile which ones are gone."""


class Door:
    """Holds no model, and so outlives what ends those that do.

    Args:
        replicas: Of `Replica`.
        limits: Of one request.
        token: What clients must send; ``None``: nothing.
        attempts: Replicas that a request may be sent to.
    """

    def __init__(
        self, replicas: DeploymentHandle[Any], limits: Limits, token: str | None, attempts: int
    ) -> None:
        self._replicas = replicas.options(stream=True, method_name="answer")
        self._limits, self._attempts = limits, attempts
        self._gated = HttpGate(self._answer, Gate(token), limits, public=FILES)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Ray serves: the gate of every server, and behind it the replicas."""
        gated, lifespan = self._gated, Starlette()

        # A function: uvicorn takes a bound method for an application of ASGI 2.
        async def enter(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await lifespan(scope, receive, send)
                return
            # The gate knows paths as a server at the root has them.
            path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
            await gated({**scope, "path": path, "root_path": ""}, receive, send)

        return enter

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send)
        if scope["path"] == LIVE:
            await answer.say({"live": True}, HTTPStatus.OK)
        elif scope["path"] == "/metrics":
            raise RequestError("Metrics are Ray's: see its own.", HTTPStatus.NOT_FOUND)
        elif PASSAGE in scope:
            await self._forward(scope, await Request(scope, receive).body(), answer)
        else:
            # What the gate lets by uncounted has no body that anyone would read.
            try:
                await self._forward(scope, b"", answer)
            except CausalAttnError:
                await answer.say({"ready": False}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _forward(self, scope: Scope, body: bytes, answer: _Answer) -> None:
        """The answer of the first replica that lives long enough to give it.

        Raises:
            BusyError: As many wait for a replica as may.
            StoppedError: None answered in time.
            LostError: Each that had the request was lost.
        """
        asked = _asked(scope)
        try:
            async with asyncio.timeout(self._limits.seconds):
                for attempt in range(self._attempts):
                    await asyncio.sleep(PAUSE_SECONDS * attempt)
                    if await self._attempt(asked, body, answer):
                        return
            raise LostError(
                f"{self._attempts} replicas had the request, one after another, and were lost. "
                "Send it again later."
            )
        except (TimeoutError, CausalAttnError) as error:
            late = StoppedError("The request must end in time, got stopped.")
            told = late if isinstance(error, TimeoutError) else error
            if not answer.of_events:
                raise told from None
            # The status has gone long ago: clients of streams read errors from events.
            scope[PASSAGE].failed(told)
            await answer.end(b"data: " + error_body("/v1", failure_of(told)) + b"\n\n")

    async def _attempt(self, asked: dict[str, Any], body: bytes, answer: _Answer) -> bool:
        """Whether a replica answered; not so if it was lost before the client saw any of it."""
        response: Any = self._replicas.remote(asked, body)
        try:
            async for messages in response:
                for message in messages:
                    await answer.send(message)
        except BackPressureError:
            raise BusyError(
                f"At most {self._limits.max_waiting} requests may wait, got one more. Send it "
                "again later."
            ) from None
        except RayTaskError:
            # The replica lives, and could not: another one could no better.
            raise
        except (RayError, DeploymentUnavailableError):
            if answer.begun:
                raise LostError(
                    "The replica was lost in the middle of the answer. Send the request again."
                ) from None
            return False
        finally:
            response.cancel()
        return True


class _Answer:
    """What goes out.

    Attributes:
        begun: Whether anything has gone.
        of_events: Whether it is a stream of events.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.of_events = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            self.of_events = any(value.startswith(b"text/event-stream") for _, value in headers)
            # The door's gate says it too.
            kept = [(name, value) for name, value in headers if name != b"x-request-id"]
            message = {**message, "headers": kept}
        self.begun = True
        await self._send(message)

    async def say(self, value: dict[str, bool], status: HTTPStatus) -> None:
        headers = [(b"content-type", b"application/json")]
        await self.send({"type": "http.response.start", "status": int(status), "headers": headers})
        await self.end(orjson.dumps(value))

    async def end(self, content: bytes) -> None:
        await self.send({"type": "http.response.body", "body": content})


def _asked(scope: Scope) -> dict[str, Any]:
    """What of `scope` a replica is told."""
    passage: Passage | None = scope.get(PASSAGE)
    headers = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
    if passage is not None:
        headers.append((b"x-request-id", passage.identity.encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "method": scope["method"],
        "path": scope["path"],
        "raw_path": scope["path"].encode(),
        "query_string": scope["query_string"],
        "headers": headers,
    }
