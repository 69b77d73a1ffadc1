"""The protocol over gRPC: the SDK's service with our reading of tensors, behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc import aio

from causal_attn.errors import UsageError
from causal_attn.serve.failures import RequestError, failure_of
from causal_attn.serve.gate import Gate
from causal_attn.serve.message_call import MessageCall
from causal_attn.serve.plane import Plane
from causal_attn.serve.sdk import InferenceServicer, ModelRepositoryExtension, add_servicer
from causal_attn.serve.settings import Address, Limits

__all__ = ["grpc_server"]

_HEALTH = (
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
)


def grpc_server(
    plane: Plane, gate: Gate, address: Address, limits: Limits
) -> tuple[aio.Server, int]:
    """A server that was not started, and the port that it listens on.

    Raises:
        UsageError: The address is taken, or not of this machine.
    """
    server = aio.server(
        interceptors=(_Gated(gate, limits),),
        options=(
            ("grpc.max_receive_message_length", limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            # Two servers that share a port would each get half of the requests.
            ("grpc.so_reuseport", 0),
        ),
    )
    add_servicer(_Service(plane), server)
    try:
        return server, server.add_insecure_port(f"{address.host}:{address.grpc_port}")
    except RuntimeError:
        raise UsageError(
            "`host` and `grpc_port` must be an address of this machine that nobody listens on, "
            f"got {address.host}:{address.grpc_port}."
        ) from None


class _Service(InferenceServicer):
    def __init__(self, plane: Plane) -> None:
        super().__init__(plane, ModelRepositoryExtension(plane.model_registry))
        self._plane = plane

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        answer, _ = await self._plane.infer(request.model_name, MessageCall(request))
        return answer

    async def RepositoryModelLoad(self, request: Any, context: Any) -> NoReturn:
        raise RequestError("Models are loaded when the server starts, and not by requests.")

    async def RepositoryModelUnload(self, request: Any, context: Any) -> NoReturn:
        raise RequestError("Models are unloaded when the server ends, and not by requests.")


class _Gated(aio.ServerInterceptor):
    """Every call passes the gate, is ended in time, and fails with a code and a sentence."""

    def __init__(self, gate: Gate, limits: Limits) -> None:
        self._gate, self._limits = gate, limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        details = handler_call_details
        handler = await continuation(details)
        if handler is None or handler.unary_unary is None or details.method in _HEALTH:
            return handler

        async def answer(request: Any, context: Any) -> Any:
            headers = dict(context.invocation_metadata())
            with self._gate.pass_through("grpc", details.method, headers) as passage:
                await context.send_initial_metadata((("x-request-id", passage.identity),))
                try:
                    self._gate.check(headers)
                    if request is None:
                        raise RequestError("The message must be protobuf of this method.")
                    return await handler.unary_unary(request, context)
                # As in HTTP: a sentence to the client, the rest to the log.
                except Exception as error:  # noqa: BLE001
                    passage.failed(error)
                    failure = failure_of(error)
            await context.abort(failure.code, failure.message)

        def read(content: bytes) -> Any:
            try:
                return handler.request_deserializer(content)
            except DecodeError:
                return None

        return grpc.unary_unary_rpc_method_handler(answer, read, handler.response_serializer)
