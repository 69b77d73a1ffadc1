"""OpenAI's endpoints over the engine: completions and chat, whole or streamed.

The KServe SDK has classes for them too; theirs need vLLM, which is torch and gigabytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from causal_attn.errors import CausalAttnError, ContextError
from causal_attn.runtime.engine import Stream
from causal_attn.runtime.generate import Token
from causal_attn.serve.failures import RequestError, failure_of
from causal_attn.serve.gate import Passage
from causal_attn.serve.http_gate import PASSAGE, error_body
from causal_attn.serve.language_model import LanguageModel
from causal_attn.serve.metrics import FIRST_TOKEN_SECONDS
from causal_attn.serve.openai_answer import Written
from causal_attn.serve.openai_request import read_request
from causal_attn.serve.plane import Plane

__all__ = ["add_openai_routes"]

PREFIXES = ("/v1", "/openai/v1")
"""Where OpenAI's own client looks, and where KServe puts them."""

CLIENT_CLOSED = 499
"""What servers write into their logs for a client that went away; nobody receives it."""


def add_openai_routes(app: FastAPI, plane: Plane) -> None:
    """Add the endpoints of the language models of `plane` to `app`."""
    started = int(time.time())
    languages = {model.name: model for model in plane.models if isinstance(model, LanguageModel)}

    def described(name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": started, "owned_by": "causal-attn"}

    async def models() -> Response:
        return _json({"object": "list", "data": [described(name) for name in languages]})

    async def model(model_name: str) -> Response:
        if model_name not in languages:
            raise _unknown()
        return _json(described(model_name))

    async def completions(request: Request) -> Response:
        return await _answer(request, languages, chat=False)

    async def chat(request: Request) -> Response:
        return await _answer(request, languages, chat=True)

    for prefix in PREFIXES:
        app.add_api_route(f"{prefix}/models", models, methods=["GET"])
        app.add_api_route(f"{prefix}/models/{{model_name}}", model, methods=["GET"])
        app.add_api_route(f"{prefix}/completions", completions, methods=["POST"])
        app.add_api_route(f"{prefix}/chat/completions", chat, methods=["POST"])


async def _answer(
    request: Request, languages: dict[str, LanguageModel], *, chat: bool
) -> Response:
    began = time.perf_counter()
    asked = read_request(await request.body(), chat=chat)
    model = languages.get(asked.model)
    if model is None:
        raise _unknown()
    prompt = await model.chat(asked.messages) if asked.messages is not None else asked.prompt
    assert prompt is not None  # one of the two was read
    stream, prompt_tokens = await model.submit(prompt, asked.options)
    passage: Passage = request.scope[PASSAGE]
    written = Written(asked, passage.identity, prompt_tokens, model.word)
    if not asked.stream:
        tokens = await _unless_gone(request, stream, passage)
        return (
            Response(status_code=CLIENT_CLOSED) if tokens is None else _json(written.whole(tokens))
        )
    # Until the first token has come, what goes wrong still has a status.
    first = await _next(stream)
    FIRST_TOKEN_SECONDS.labels(model.name).observe(time.perf_counter() - began)
    return StreamingResponse(
        _events(first, stream, written, passage), media_type="text/event-stream"
    )


async def _next(stream: Stream) -> Token | None:
    """The next token; ``None`` at the end, or where the context is full."""
    try:
        return await anext(stream.__aiter__())
    except (StopAsyncIteration, ContextError):
        return None
    except asyncio.CancelledError:
        stream.cancel()
        raise


async def _unless_gone(request: Request, stream: Stream, passage: Passage) -> list[Token] | None:
    """All tokens; ``None`` if the client goes before the last has come."""
    collecting = asyncio.create_task(_collected(stream))
    # The body is in: what is still to come of this connection is its end.
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if collecting.done():
            return collecting.result()
        passage.outcome = "vanished"
        return None
    finally:
        stream.cancel()
        collecting.cancel()
        leaving.cancel()


async def _collected(stream: Stream) -> list[Token]:
    tokens = []
    while (token := await _next(stream)) is not None:
        tokens.append(token)
    return tokens


async def _events(
    token: Token | None, stream: Stream, written: Written, passage: Passage
) -> AsyncIterator[bytes]:
    finished = False
    try:
        if opening := written.opening():
            yield _event(opening)
        while token is not None:
            # A client that reads as fast as the model writes gets one token at a time; where the
            # model was faster, all there are go out as one.
            tokens = [token, *stream.came()]
            if pieces := [piece for one in tokens if (piece := written.piece(one))]:
                yield b"".join(map(_event, pieces))
            finished = tokens[-1].finish is not None
            token = None if finished else await _next(stream)
        if not finished:
            yield _event(written.full())
        if ending := written.ending():
            yield _event(ending)
        yield b"data: [DONE]\n\n"
    except CausalAttnError as error:
        # The status has gone long ago: clients of streams read errors from events.
        passage.failed(error)
        yield b"data: " + error_body("/v1", failure_of(error)) + b"\n\n"
    except asyncio.CancelledError:
        passage.outcome = "vanished"
        raise
    finally:
        stream.cancel()


def _event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _unknown() -> RequestError:
    return RequestError(
        "`model` must be a language model of this server: see /v1/models.", HTTPStatus.NOT_FOUND
    )
