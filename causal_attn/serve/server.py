"""HTTP and gRPC over the same models, in one process and one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from causal_attn.errors import UsageError
from causal_attn.serve.gate import Gate, say
from causal_attn.serve.grpc_service import grpc_server
from causal_attn.serve.http_gate import HttpGate
from causal_attn.serve.metrics import watch
from causal_attn.serve.page import FILES
from causal_attn.serve.plane import Plane
from causal_attn.serve.rest import application
from causal_attn.serve.settings import Address, Limits
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["serve"]

KEEP_ALIVE_SECONDS = 65
"""Longer than the minute after which proxies give up an idle connection: they close it first."""


def serve(
    models: Sequence[TensorModel],
    *,
    address: Address,
    limits: Limits,
    token: str | None = None,
    ready: Callable[[str, str], None] = lambda http, grpc: None,
) -> None:
    """Serve `models` until SIGTERM or SIGINT; then answer what was taken, and close them.

    From the signal on new requests get 503, and readiness is false. What is still running after
    `Limits.grace_seconds` is cut off.

    Args:
        models: Loaded; their names differ.
        address: Where to listen.
        limits: Of a request.
        token: What clients must send; ``None``: nothing.
        ready: Told the addresses of HTTP and gRPC, once both answer.

    Raises:
        UsageError: An address is taken, or not of this machine.
    """
    logging.getLogger("causal_attn.serve").setLevel(logging.INFO)
    watch(models)
    try:
        asyncio.run(_serve(models, address, limits, token, ready))
    finally:
        for model in models:
            model.stop()


async def _serve(
    models: Sequence[TensorModel],
    address: Address,
    limits: Limits,
    token: str | None,
    ready: Callable[[str, str], None],
) -> None:
    gate = Gate(token)
    plane = Plane(models, gate)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    with _listening(address) as listening:
        rpc, rpc_port = grpc_server(plane, gate, address, limits)
        await rpc.start()
        http = _Uvicorn(
            uvicorn.Config(
                HttpGate(application(plane), gate, limits, public=FILES),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
            )
        )
        running = asyncio.create_task(http.serve(sockets=[listening]))
        stopping = asyncio.create_task(told.wait())
        for model in models:
            await model.warm_up()
            model.ready = True
        where = f"http://{address.host}:{listening.getsockname()[1]}", f"{address.host}:{rpc_port}"
        say("ready", http=where[0], grpc=where[1], models=[model.name for model in models])
        ready(*where)
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        gate.closing = True
        say("stopping")
        finished = await gate.drained(limits.grace_seconds)
        http.should_exit = True
        await rpc.stop(grace=0.5)
        await running
        say("stopped", finished=finished)


def _listening(address: Address) -> socket.socket:
    try:
        return socket.create_server((address.host, address.port), backlog=512)
    except OSError as error:
        raise UsageError(
            "`host` and `port` must be an address of this machine that nobody listens on, got "
            f"{address.host}:{address.port}: {error.strerror}."
        ) from None


class _Uvicorn(uvicorn.Server):
    """Signals are the caller's: the first one only begins the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
