"""What a client is told when something goes wrong, in HTTP and in gRPC.

A mistake of the client is a 4xx with the sentence of its error. What the server is to blame for is
a 5xx that says no more than that: the rest is in the log, under the id of the request.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from grpc import StatusCode
from starlette.requests import ClientDisconnect

from causal_attn.errors import (
    BusyError,
    ClosedError,
    ContextError,
    EngineError,
    StoppedError,
    UsageError,
)
from causal_attn.serve.sdk import InvalidInput, ModelNotFound

__all__ = ["Failure", "LostError", "RequestError", "failure_of"]

INTERNAL = "The server failed. Its log has more under this request's id."


class RequestError(UsageError):
    """A request that is refused before any model sees it.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class LostError(EngineError):
    """What ran the request is gone: its process, or the node that it was on."""


class Failure(NamedTuple):
    """What is said of an exception.

    Attributes:
        status: Of HTTP.
        code: Of gRPC.
        message: For the client.
        kind: One word for a metric.
    """

    status: HTTPStatus
    code: StatusCode
    message: str
    kind: str


_CODES = {
    HTTPStatus.BAD_REQUEST: StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: StatusCode.UNAUTHENTICATED,
    HTTPStatus.NOT_FOUND: StatusCode.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: StatusCode.UNIMPLEMENTED,
    HTTPStatus.REQUEST_TIMEOUT: StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: StatusCode.INVALID_ARGUMENT,
    HTTPStatus.SERVICE_UNAVAILABLE: StatusCode.UNAVAILABLE,
}


def failure_of(error: BaseException) -> Failure:
    """What to say of `error`."""
    if isinstance(error, RequestError):
        return _failure(error.status, str(error), "refused")
    if isinstance(error, ClientDisconnect):
        # Nobody is there to be told; the log is.
        words = "The body must come whole, got a part of it."
        return _failure(HTTPStatus.BAD_REQUEST, words, "vanished")
    if isinstance(error, ModelNotFound):
        return _failure(HTTPStatus.NOT_FOUND, "There is no model of this name here.", "not_found")
    if isinstance(error, UsageError | InvalidInput | ContextError):
        return _failure(HTTPStatus.BAD_REQUEST, str(error), "invalid")
    if isinstance(error, BusyError):
        return _failure(HTTPStatus.SERVICE_UNAVAILABLE, str(error), "busy")
    if isinstance(error, LostError):
        return _failure(HTTPStatus.SERVICE_UNAVAILABLE, str(error), "lost")
    if isinstance(error, StoppedError):
        words = (
            "The request must end within the server's time for one, got stopped. Ask for less, or "
            "send it again later."
        )
        return _failure(HTTPStatus.SERVICE_UNAVAILABLE, words, "stopped")
    if isinstance(error, ClosedError):
        words = "The server is stopping. Send it to another one."
        return _failure(HTTPStatus.SERVICE_UNAVAILABLE, words, "stopping")
    kind = "engine" if isinstance(error, EngineError) else "internal"
    return Failure(HTTPStatus.INTERNAL_SERVER_ERROR, StatusCode.INTERNAL, INTERNAL, kind)


def _failure(status: HTTPStatus, message: str, kind: str) -> Failure:
    return Failure(status, _CODES[status], message, kind)
