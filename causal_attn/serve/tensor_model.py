"""A package as a model of the KServe SDK: tensors in, tensors out, by the contract."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from causal_attn.errors import UsageError
from causal_attn.json_text import shown
from causal_attn.package.contract import TensorContract
from causal_attn.runtime import Session
from causal_attn.runtime.batcher import Batcher
from causal_attn.runtime.limits import SizeLimits, named_sizes
from causal_attn.serve.failures import RequestError
from causal_attn.serve.sdk import Model
from causal_attn.serve.settings import Limits
from causal_attn.serve.tensor_call import TensorCall
from causal_attn.serve.tensors import DATATYPE_OF
from causal_attn.serve.turns import Turns
from causal_attn.verify.feeds.feeder import Feeder

__all__ = ["TensorModel"]

_ANY_SIZE = -1
"""How the protocol writes a dim that has no fixed size."""


class TensorModel(Model):
    """Answers the Open Inference Protocol v2 with a session; `stop` closes it.

    Args:
        name: That clients call it by.
        session: Of the package.
        limits: Of one request.
    """

    def __init__(self, name: str, session: Session, limits: Limits) -> None:
        super().__init__(name)
        self.session = session
        contract = session.contract
        self._batcher = _batcher(session, limits)
        self.turns = Turns(limits, _places(limits, joining=self._batcher is not None))
        has_tokens = any(contract.tokens in tensor.dims for tensor in contract.inputs)
        self._limits = SizeLimits(
            contract,
            max_tokens=limits.max_tokens if has_tokens else None,
            max_bytes=limits.max_bytes,
        )

    def get_input_types(self) -> list[dict[str, Any]]:
        """The inputs, as the protocol describes tensors."""
        return [_described(tensor) for tensor in self.session.contract.inputs]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The outputs, as the protocol describes tensors."""
        return [_described(tensor) for tensor in self.session.contract.outputs]

    async def predict(
        self,
        payload: Any,
        headers: Mapping[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> Any:
        """What `payload`, a `TensorCall`, writes of the session's results.

        Raises:
            RequestError: The call is not what its protocol says.
            InputError: The tensors are not what the contract says, or larger than they may be.
            BusyError: As many requests wait as may.
            EngineError: ONNX Runtime failed, or the call did not end in time.
        """
        return await self.turns.run(lambda: self._answer(payload))

    async def warm_up(self) -> None:
        """Make the first call, whose time no client should wait for.

        Raises:
            CausalAttnError: The model does not run.
        """
        await self.turns.run(self._try)

    async def check(self) -> None:
        """Make a call beside those that wait: to be busy is no failure.

        Raises:
            CausalAttnError: The model does not run.
        """
        await asyncio.to_thread(self._try)

    def numbers(self) -> dict[str, int]:
        """What there is now, by the names of metrics."""
        return {
            "calls_running": self.turns.running,
            "calls_waiting": self.turns.waiting,
            "calls_joined": int(self._batcher is not None),
        }

    def stop(self) -> None:
        """Take no more calls, and close the session when those that run are over."""
        super().stop()
        if self._batcher is not None:
            self._batcher.close()
        self.turns.close()
        self.session.close()

    def _try(self) -> None:
        feeder = Feeder(contract=self.session.contract)
        sizes = next(feeder.cases((self.session.contract.lengths_within((16,))[0],)))
        self.session.run(feeder.make(sizes, np.random.default_rng(0)))

    def _answer(self, call: TensorCall) -> Any:
        feeds, outputs = call.read()
        contract = self.session.contract
        # Sizes need every input with its rank; without, the session says what is wrong.
        if all(
            tensor.name in feeds and feeds[tensor.name].ndim == len(tensor.dims)
            for tensor in contract.inputs
        ) and len(feeds) == len(contract.inputs):
            shapes = {name: array.shape for name, array in feeds.items()}
            self._limits.check(shapes, named_sizes(contract, shapes))
        if self._batcher is None:
            return call.write(self.name, self.session.run(feeds, outputs))
        names = [tensor.name for tensor in contract.outputs]
        if outputs and (unknown := sorted({*outputs} - {*names})):
            raise RequestError(f"`outputs` must be names out of {names}, got {shown(unknown)}.")
        results = dict(zip(names, self._batcher(**feeds), strict=True))
        return call.write(self.name, {name: results[name] for name in outputs or names})


def _places(limits: Limits, *, joining: bool) -> int:
    """How many calls are at work at a time."""
    # A call that waits for others to join needs no core. One that runs needs a whole one: with
    # more of them than cores, threads wait for the interpreter's lock and each other's caches.
    return limits.max_running if joining else min(limits.max_running, os.cpu_count() or 1)


def _batcher(session: Session, limits: Limits) -> Batcher | None:
    """What joins calls of `session`, where that is asked for and its sequences are independent."""
    if limits.batch_delay_seconds is None:
        return None
    try:
        return Batcher(
            session,
            max_batch=limits.max_running,
            delay_seconds=limits.batch_delay_seconds,
            max_waiting=limits.max_running + limits.max_waiting,
        )
    # Sequences that reach each other are no mistake of the one who serves them.
    except UsageError:
        return None


def _described(tensor: TensorContract) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": DATATYPE_OF[tensor.dtype],
        "shape": [dim if isinstance(dim, int) else _ANY_SIZE for dim in tensor.dims],
    }
