"""A service over one model, without torch: ``uvicorn service:app --workers 2``.

``POST /attend`` takes ``{"q": …, "k": …, "v": …}``, each ``[batch, heads, tokens, features]`` as
nested lists, and answers with ``output`` and ``weights``. ``MODEL`` in the environment is a
package, by default the one that comes with the wheel.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from causal_attn import models
from causal_attn.errors import BusyError, CausalAttnError, InputError, StoppedError
from causal_attn.runtime import Batcher, Call, Cancellation, load

SECONDS = 2.0
counts: Counter[str] = Counter()


def count(call: Call) -> None:
    """What a metrics library is told; calls come from the batcher's thread alone."""
    counts["calls"] += 1
    counts["sequences"] += call.sizes.get("batch", 0)
    counts["errors"] += call.error is not None
    counts["microseconds"] += round(call.seconds * 1e6)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load after the fork of a worker; close once its requests are answered."""
    session = load(
        os.environ.get("MODEL", models.path("causal_attention")),
        intra_op_threads=1,
        session_options={"session.intra_op.allow_spinning": "0"},
        max_tokens=512,
        max_bytes=64 << 20,
        on_call=count,
    )
    with session, Batcher(session, max_batch=16, delay_seconds=0.002, max_waiting=64) as batcher:
        warm = np.zeros((1, 2, 16, 8), np.float32)
        batcher(warm, warm, warm)
        app.state.batcher = batcher
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(CausalAttnError)
async def refuse(request: Request, error: CausalAttnError) -> JSONResponse:
    """422 for what the request got wrong, 503 for what may be sent again, 500 for the rest."""
    later = isinstance(error, BusyError | StoppedError)
    status = 422 if isinstance(error, InputError) else 503 if later else 500
    return JSONResponse({"detail": str(error)}, status)


@app.post("/attend")
async def attend(values: dict[str, list]) -> dict[str, list]:
    """One call, joined with those of other clients."""
    arrays = {name: as_array(name, rows) for name, rows in values.items()}
    with Cancellation(seconds=SECONDS):
        result = await app.state.batcher.call_async(**arrays)
    return {name: array.tolist() for name, array in result._asdict().items()}


@app.get("/health")
async def health() -> dict[str, int]:
    """What was done, and how many calls wait."""
    return {**counts, "waiting": app.state.batcher.waiting}


def as_array(name: str, rows: list) -> np.ndarray:
    """The numbers of a request; NaN and infinity would reach the rows before them."""
    try:
        array = np.array(rows, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"`{name}` must be numbers in lists of one length each.") from None
    if not np.isfinite(array).all():
        raise InputError(f"`{name}` must be finite in float32.")
    return array
