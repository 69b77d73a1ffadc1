"""The HTTP application: the protocol's endpoints, metrics, those of language models, the page."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from causal_attn.errors import CausalAttnError
from causal_attn.serve.body_call import BodyCall
from causal_attn.serve.failures import RequestError, failure_of
from causal_attn.serve.http_gate import PASSAGE, error_body, extra_headers
from causal_attn.serve.openai_routes import add_openai_routes
from causal_attn.serve.page import add_page_routes
from causal_attn.serve.plane import Plane
from causal_attn.serve.sdk import InvalidInput, ModelNotFound, V2Endpoints

__all__ = ["application"]

_JSON_LENGTH = "Inference-Header-Content-Length"


def application(plane: Plane) -> FastAPI:
    """The application over the models of `plane`.

    No path of a request is a path of files, and nothing loads or unloads a model: the protocol's
    repository extension is left out.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    endpoints = V2Endpoints(plane)

    async def infer(request: Request, model_name: str) -> Response:
        model = await plane.get_model(model_name)
        length = request.headers.get(_JSON_LENGTH)
        if length is not None and not (length.isascii() and length.isdigit() and len(length) < 20):
            raise RequestError(f"`{_JSON_LENGTH}` must be a number.")
        call = BodyCall(await request.body(), None if length is None else int(length))
        answer, _ = await plane.infer(model.name, call, dict(request.headers))
        if answer.json_bytes is None:
            return Response(answer.content, media_type="application/json")
        return Response(
            answer.content,
            media_type="application/octet-stream",
            headers={_JSON_LENGTH: str(answer.json_bytes)},
        )

    async def ready() -> Response:
        is_ready = await plane.ready()
        return Response(
            orjson.dumps({"ready": is_ready}),
            status_code=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
            media_type="application/json",
        )

    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    for path, endpoint in (
        ("/v2", endpoints.metadata),
        ("/v2/health/live", endpoints.live),
        ("/v2/health/ready", ready),
        ("/v2/models", endpoints.models),
        ("/v2/models/{model_name}", endpoints.model_metadata),
        ("/v2/models/{model_name}/ready", endpoints.model_ready),
        ("/metrics", metrics),
    ):
        app.add_api_route(path, endpoint, methods=["GET"])
    app.add_api_route("/v2/models/{model_name}/infer", infer, methods=["POST"])
    add_openai_routes(app, plane)
    add_page_routes(app, plane)
    for kind in (CausalAttnError, InvalidInput, ModelNotFound, HTTPException, Exception):
        app.add_exception_handler(kind, _told)
    return app


async def _told(request: Request, error: Exception) -> Response:
    """The answer to a request that failed with `error`."""
    if isinstance(error, HTTPException):
        error = RequestError("There is no such path, or not for this method.", _status(error))
    passage = request.scope.get(PASSAGE)
    if passage is not None:
        passage.failed(error)
    failure = failure_of(error)
    return Response(
        error_body(request.url.path, failure),
        status_code=failure.status,
        headers=extra_headers(failure),
        media_type="application/json",
    )


def _status(error: HTTPException) -> HTTPStatus:
    return HTTPStatus.METHOD_NOT_ALLOWED if error.status_code == 405 else HTTPStatus.NOT_FOUND
