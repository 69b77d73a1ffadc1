"""What a door says of replicas that are lost; a process of its own, see `test_ray_application`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from causal_attn.errors import CausalAttnError
from causal_attn.serve.ray import application
from causal_attn.serve.ray.door import Door
from causal_attn.serve.settings import Limits

Messages = list[dict[str, Any]]


class Replicas:
    """A handle whose replicas do what they are told, one after another."""

    def __init__(self, *plays: list[Messages | BaseException]) -> None:
        self._plays = list(plays)
        self.asked: list[tuple[dict[str, Any], bytes]] = []

    def options(self, **_: Any) -> Replicas:
        return self

    def remote(self, asked: dict[str, Any], body: bytes) -> Response:
        self.asked.append((asked, body))
        return Response(self._plays.pop(0))


class Response:
    def __init__(self, play: list[Messages | BaseException]) -> None:
        self._play = play

    async def __aiter__(self) -> AsyncIterator[Messages]:
        for part in self._play:
            if isinstance(part, BaseException):
                raise part
            await asyncio.sleep(0)
            yield part
        if not self._play:
            await asyncio.sleep(60)

    def cancel(self) -> None:
        self._play = []


def began(kind: bytes) -> Messages:
    headers = [(b"content-type", kind), (b"x-request-id", b"theirs")]
    return [{"type": "http.response.start", "status": 200, "headers": headers}]


def said(text: bytes, *, more: bool = False) -> Messages:
    return [{"type": "http.response.body", "body": text, "more_body": more}]


async def ask(replicas: Replicas, path: str = "/v1/completions", root: str = "") -> dict[str, Any]:
    """Status, body and headers that a client of the door sees."""
    limits = Limits(seconds=1.0)
    handle: Any = replicas
    app: Any = Door(handle, limits, None, 2).__serve_build_asgi_app__()
    came: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"asked"}

    async def send(message: dict[str, Any]) -> None:
        came.append(message)

    headers = [(b"x-request-id", b"mine")]
    scope = {"type": "http", "method": "POST", "path": root + path, "root_path": root}
    try:
        await app({**scope, "headers": headers, "query_string": b""}, receive, send)
        broken = False
    except ConnectionAbortedError:
        broken = True
    body = b"".join(message.get("body", b"") for message in came[1:])
    return {
        "status": came[0]["status"],
        "body": body.decode(),
        "ids": [value.decode() for name, value in came[0]["headers"] if name == b"x-request-id"],
        "attempts": len(replicas.asked),
        "paths": [asked["path"] for asked, _ in replicas.asked],
        "broken": broken,
    }


async def doors() -> dict[str, Any]:
    """Each thing that may become of a request."""
    json_kind, events = b"application/json", b"text/event-stream; charset=utf-8"
    lost = ActorDiedError()
    full = BackPressureError(num_queued_requests=1, max_queued_requests=1)
    return {
        "retried": await ask(Replicas([lost], [began(json_kind) + said(b"right")])),
        "given up": await ask(Replicas([lost], [lost])),
        "in the middle of a stream": await ask(
            Replicas([began(events), said(b"data: 1\n\n", more=True), lost])
        ),
        "in the middle": await ask(Replicas([began(json_kind), said(b"1", more=True), lost])),
        "full": await ask(Replicas([full])),
        "too late": await ask(Replicas([])),
        "elsewhere": await ask(Replicas([began(json_kind) + said(b"")]), root="/prefix"),
        "live": await ask(Replicas(), "/v2/health/live"),
        "not ready": await ask(Replicas([lost], [lost]), "/v2/health/ready"),
        "metrics": await ask(Replicas(), "/metrics"),
    }


def mistake(given: dict[str, Any]) -> str:
    """What an application that is `given` this is refused with."""
    try:
        application("/nowhere", **given)
    except CausalAttnError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    wrong: list[dict[str, Any]] = [
        {"replicas": 0},
        {"doors": True},
        {"attempts": 0},
        {"limits": 3},
        {"token": "short"},
        {},
    ]
    mistakes = [mistake(given) for given in wrong]
    print(json.dumps({"doors": asyncio.run(doors()), "mistakes": mistakes}))  # noqa: T201
