"""The routes of the page: its files, and the JSON that they ask for."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from causal_attn.errors import UsageError
from causal_attn.runtime.generate.decoding import require_ids
from causal_attn.serve.failures import RequestError
from causal_attn.serve.language_model import LanguageModel
from causal_attn.serve.metrics import request_seconds
from causal_attn.serve.page.attentions import attentions_of
from causal_attn.serve.page.described import described
from causal_attn.serve.page.reach import reach_of
from causal_attn.serve.plane import Plane

__all__ = ["FILES", "add_page_routes"]

FILES = {
    "/": ("page.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/model.js": ("model.js", "text/javascript"),
    "/page/writing.js": ("writing.js", "text/javascript"),
    "/page/drawing.js": ("drawing.js", "text/javascript"),
    "/page/latency.js": ("latency.js", "text/javascript"),
}
"""By the path of a request: a file of this folder and its media type. They say nothing of the
server, so they need no token; what they ask for does."""

_HEADERS = {
    # Only this server's files run, and nothing that a model says can become one.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

MOST_TOKENS = 1024
"""Of a text whose weights are shown: a layer's are then 4 MB a head."""


def add_page_routes(app: FastAPI, plane: Plane) -> None:
    """Add the page over the models of `plane` to `app`."""
    for path, (name, media_type) in FILES.items():
        app.add_api_route(path, _file(name, media_type), methods=["GET"])

    async def models() -> Response:
        return _json(
            {
                **plane.metadata(),
                "seconds": request_seconds(),
                "models": [described(model) for model in plane.models],
            }
        )

    async def reach(model_name: str) -> Response:
        model = await plane.get_model(model_name)
        return _json(await reach_of(model))

    async def tokens(request: Request, model_name: str) -> Response:
        model = await _language_model(plane, model_name)
        asked = await _asked(request)
        text, chat = asked.get("text"), asked.get("chat", False)
        if not isinstance(text, str) or not isinstance(chat, bool):
            raise RequestError("`text` must be a string, and `chat` true or false.")
        ids = await model.tokens(text, chat=chat)
        return _json({"ids": ids, "words": [model.word(token) for token in ids]})

    async def attentions(request: Request, model_name: str) -> Response:
        model = await _language_model(plane, model_name)
        asked = await _asked(request)
        layer, head = (_index(asked, name) for name in ("layer", "head"))
        ids = require_ids(asked.get("ids", ()), model.generator.decoder.vocabulary)
        if len(ids) > MOST_TOKENS:
            raise RequestError(f"`ids` must be at most {MOST_TOKENS} tokens, got {len(ids)}.")
        weights = await attentions_of(model, ids, layer, head)
        return _json({"weights": weights})

    prefix = "/page/models"
    app.add_api_route(prefix, models, methods=["GET"])
    app.add_api_route(f"{prefix}/{{model_name}}/reach", reach, methods=["GET"])
    app.add_api_route(f"{prefix}/{{model_name}}/tokens", tokens, methods=["POST"])
    app.add_api_route(f"{prefix}/{{model_name}}/attentions", attentions, methods=["POST"])


async def _language_model(plane: Plane, name: str) -> LanguageModel:
    model = await plane.get_model(name)
    if not isinstance(model, LanguageModel):
        raise UsageError(f"`{name}` must be a language model, got one of tensors.")
    return model


async def _asked(request: Request) -> dict[str, Any]:
    try:
        asked = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body must be JSON: {error}.") from None
    if not isinstance(asked, dict):
        raise RequestError("The body must be a JSON object.")
    return asked


def _index(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if type(value) is not int:
        raise RequestError(f"`{name}` must be an integer.")
    return value


def _file(name: str, media_type: str) -> Any:
    async def answer() -> Response:
        return Response(_content(name), media_type=media_type, headers=_HEADERS)

    return answer


@cache
def _content(name: str) -> bytes:
    return files("causal_attn.serve.page").joinpath(name).read_bytes()


def _json(value: object) -> Response:
    return Response(
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY),
        media_type="application/json",
        headers=_HEADERS,
    )
