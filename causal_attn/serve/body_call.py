"""A call with tensors over HTTP: a body in, a body out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from numpy.typing import NDArray

from causal_attn.json_text import shown
from causal_attn.serve.failures import RequestError
from causal_attn.serve.sdk import InferOutput, InferRequest, InferResponse
from causal_attn.serve.tensor_call import Asked
from causal_attn.serve.tensors import DATATYPE_OF, array_of, read_rest

__all__ = ["Answer", "BodyCall"]


class Answer(NamedTuple):
    """A body.

    Attributes:
        content: JSON, and the binary tensors behind it.
        json_bytes: How much of it is JSON; ``None``: all.
    """

    content: bytes
    json_bytes: int | None


class BodyCall:
    """A `TensorCall` in an HTTP body.

    Args:
        body: The whole of it.
        json_bytes: How much of it is JSON; ``None``: all.
    """

    def __init__(self, body: bytes, json_bytes: int | None) -> None:
        self._body, self._json_bytes = body, json_bytes
        self._request: InferRequest | None = None

    def read(self) -> Asked:
        """As in `TensorCall`."""
        self._request = request = read_rest(self._body, self._json_bytes)
        feeds: dict[str, NDArray[Any]] = {}
        for tensor in request.inputs:
            if tensor.name in feeds:
                raise RequestError(f"`{shown(tensor.name)}` must come once, got it twice.")
            feeds[tensor.name] = array_of(tensor)
        wanted = request.request_outputs
        return Asked(feeds, [output.name for output in wanted] if wanted else None)

    def write(self, model: str, results: Mapping[str, NDArray[Any]]) -> Answer:
        """As in `TensorCall`."""
        request = self._request
        assert request is not None  # it was read
        outputs = []
        for name, array in results.items():
            outputs.append(InferOutput(name, list(array.shape), DATATYPE_OF[str(array.dtype)]))
            # The SDK makes bytes or lists of it, as each output was asked for.
            outputs[-1].data = array
        answer = InferResponse(
            request.id or "",
            model,
            outputs,
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )
        # Bytes with the length of their JSON, or without: an object.
        written: Any
        written, size = answer.to_rest()
        if size is None:
            written = orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY)
        return Answer(written, size)
