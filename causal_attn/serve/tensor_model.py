"""A package as a model of the KServe SDK: tensors in, tensors out, by the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.json_text import shown
from causal_attn.package.contract import TensorContract
from causal_attn.runtime import Cancellation, Session
from causal_attn.runtime.batcher import Batcher
from causal_attn.runtime.limits import SizeLimits, named_sizes
from causal_attn.serve.failures import RequestError
from causal_attn.serve.sdk import InferOutput, InferRequest, InferResponse, Model
from causal_attn.serve.settings import Limits
from causal_attn.serve.tensors import DATATYPES, array_of
from causal_attn.serve.turns import Turns
from causal_attn.verify.feeds.feeder import Feeder

__all__ = ["TensorModel"]

_DATATYPE_OF = {dtype: datatype for datatype, dtype in DATATYPES.items()}

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
        self.turns = Turns(limits)
        contract = session.contract
        self._seconds = limits.seconds
        self._batcher = _batcher(session, limits)
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
    ) -> InferResponse:
        """Run the session on the tensors of `payload`, an `InferRequest`.

        Raises:
            RequestError: An input comes twice.
            InputError: The tensors are not what the contract says, or larger than they may be.
            BusyError: As many requests wait as may.
            EngineError: ONNX Runtime failed, or the call did not end in time.
        """
        feeds: dict[str, NDArray[Any]] = {}
        for tensor in payload.inputs:
            if tensor.name in feeds:
                raise RequestError(f"`{shown(tensor.name)}` must come once, got it twice.")
            feeds[tensor.name] = array_of(tensor)
        wanted = None
        if payload.request_outputs:
            wanted = [output.name for output in payload.request_outputs]
        results = await self._run(feeds, wanted)
        return InferResponse(
            payload.id or "",
            self.name,
            [_output(name, array, payload) for name, array in results.items()],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    async def warm_up(self) -> None:
        """Make the first call, whose time no client should wait for.

        Raises:
            CausalAttnError: The model does not run.
        """
        feeder = Feeder(contract=self.session.contract)
        sizes = next(feeder.cases((self.session.contract.lengths_within((16,))[0],)))
        feeds = feeder.make(sizes, np.random.default_rng(0))
        await self.turns.run(lambda: self.session.run(feeds))

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

    async def _run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None
    ) -> Mapping[str, NDArray[Any]]:
        contract = self.session.contract
        # Sizes need every input with its rank; without, the session says what is wrong.
        if all(
            tensor.name in feeds and feeds[tensor.name].ndim == len(tensor.dims)
            for tensor in contract.inputs
        ) and len(feeds) == len(contract.inputs):
            shapes = {name: array.shape for name, array in feeds.items()}
            self._limits.check(shapes, named_sizes(contract, shapes))
        if self._batcher is None:
            return await self.turns.run(lambda: self.session.run(feeds, outputs))
        names = [tensor.name for tensor in contract.outputs]
        if outputs and (unknown := sorted({*outputs} - {*names})):
            raise RequestError(f"`outputs` must be names out of {names}, got {shown(unknown)}.")
        with Cancellation(seconds=self._seconds):
            results = dict(zip(names, await self._batcher.call_async(**feeds), strict=True))
        return {name: results[name] for name in outputs or names}


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
        "datatype": _DATATYPE_OF[tensor.dtype],
        "shape": [dim if isinstance(dim, int) else _ANY_SIZE for dim in tensor.dims],
    }


def _output(name: str, array: NDArray[Any], asked: InferRequest) -> InferOutput:
    output = InferOutput(name, list(array.shape), _DATATYPE_OF[str(array.dtype)])
    # The SDK writes arrays into HTTP bodies, and bytes or lists into messages of gRPC.
    if not asked.from_grpc:
        output.data = array
    elif asked.use_binary_outputs or array.dtype == np.float16:
        output.set_data_from_numpy(array, binary_data=True)
    else:
        output.data = array.ravel().tolist()
    return output
