"""A call with tensors over gRPC: a message in, a message out.

Numbers in messages are read as `tensor_array` reads all others: nothing is cast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.json_text import shown
from causal_attn.serve.failures import RequestError
from causal_attn.serve.sdk import messages
from causal_attn.serve.tensor_call import Asked
from causal_attn.serve.tensors import DATATYPE_OF, tensor_array

__all__ = ["MessageCall"]

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Datatype to the field with its numbers; float16 comes as bytes alone."""


class MessageCall:
    """A `TensorCall` in a message.

    Args:
        message: A ``ModelInferRequest``.
    """

    def __init__(self, message: Any) -> None:
        self._message = message

    def read(self) -> Asked:
        """As in `TensorCall`."""
        raws = self._message.raw_input_contents
        tensors = self._message.inputs
        if raws and len(raws) != len(tensors):
            raise RequestError(
                f"`raw_input_contents` must have one entry for each of the {len(tensors)} "
                f"inputs, got {len(raws)}."
            )
        feeds: dict[str, NDArray[Any]] = {}
        for index, tensor in enumerate(tensors):
            if tensor.name in feeds:
                raise RequestError(f"`{shown(tensor.name)}` must come once, got it twice.")
            raw = raws[index] if raws else None
            feeds[tensor.name] = _array(f"inputs[{index}]", tensor, raw)
        return Asked(feeds, [output.name for output in self._message.outputs] or None)

    def write(self, model: str, results: Mapping[str, NDArray[Any]]) -> Any:
        """As in `TensorCall`: bytes are answered by bytes, and so is what has no other field."""
        answer = messages.ModelInferResponse(model_name=model, id=self._message.id)
        as_bytes = bool(self._message.raw_input_contents) or any(
            array.dtype == np.float16 for array in results.values()
        )
        for name, array in results.items():
            datatype = DATATYPE_OF[str(array.dtype)]
            output = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if as_bytes:
                answer.raw_output_contents.append(array.tobytes())
            else:
                getattr(output.contents, _CONTENTS[datatype]).extend(array.ravel().tolist())
        return answer


def _array(where: str, tensor: Any, raw: bytes | None) -> NDArray[Any]:
    values: list[Any] | None = None
    if raw is None:
        field = _CONTENTS.get(tensor.datatype)
        if field is None:
            raise RequestError(f"`{where}` must come in `raw_input_contents`.")
        values = list(getattr(tensor.contents, field))
    elif tensor.HasField("contents"):
        raise RequestError(f"`{where}` must have contents or raw contents, got both.")
    return tensor_array(where, tensor.datatype, list(tensor.shape), raw, values)
