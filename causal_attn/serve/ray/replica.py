"""One process with the models: it answers whole HTTP requests that a door hands it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Message

from causal_attn.serve.gate import Gate
from causal_attn.serve.http_gate import HttpGate
from causal_attn.serve.loading import load_models
from causal_attn.serve.plane import Plane
from causal_attn.serve.rest import application
from causal_attn.serve.settings import Limits

__all__ = ["Replica"]


class Replica:
    """Loads packages when Ray starts it, and is warm after its first check.

    Args:
        options: Of `load_models`.
        limits: Of one request.
    """

    def __init__(self, options: dict[str, Any], limits: Limits) -> None:
        self._models = load_models(**options, limits=limits)
        gate = Gate()
        self._app = HttpGate(application(Plane(self._models, gate)), gate, limits)

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[list[Message]]:
        """The messages of ASGI that answer a request; those that are there together, in one list.

        Args:
            scope: Of ASGI, of what does not belong to one process.
            body: The whole of it.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        asked: list[Message] = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            if asked:
                return asked.pop()
            # That the client left is for the door to see, which then cancels this.
            return await asyncio.Future()

        running = asyncio.create_task(self._app(scope, receive, messages.put))
        running.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            ended = False
            while not ended:
                came = [await messages.get()]
                while not messages.empty():
                    came.append(messages.get_nowait())
                ended = came[-1] is None
                if ready := [message for message in came if message is not None]:
                    yield ready
            # Raises what the application did not answer.
            await running
        finally:
            running.cancel()

    async def check_health(self) -> None:
        """Ray asks, first before it sends requests; an error is a replica to be replaced.

        Raises:
            CausalAttnError: A model does not answer.
        """
        for model in self._models:
            await (model.check() if model.ready else model.warm_up())
            model.ready = True

    def __del__(self) -> None:
        for model in getattr(self, "_models", ()):
            model.stop()
