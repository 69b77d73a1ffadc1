"""Tensors of the Open Inference Protocol v2: JSON, bytes and protobuf messages to arrays.

https://github.com/kserve/open-inference-protocol. The KServe SDK reads them too, but it casts (1.5
is an integer 1 to it), turns binary tensors into Python lists, and stumbles over fields that are
not there. Here a tensor is what it says, or an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from causal_attn.json_text import shown
from causal_attn.serve.failures import RequestError
from causal_attn.serve.sdk import InferInput, InferRequest, RequestedOutput

__all__ = ["DATATYPES", "DATATYPE_OF", "array_of", "read_rest", "tensor_array"]

DATATYPES = {
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The protocol's names to numpy's."""

DATATYPE_OF = {dtype: datatype for datatype, dtype in DATATYPES.items()}
"""numpy's names to the protocol's."""

_KINDS: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""What JSON may have for each of numpy's kinds."""

MAX_RANK = 32
"""Of a tensor; numpy's own limit is 64."""

MAX_EMPTY = 1 << 59
"""Product of the other sizes where one is 0: what numpy can address with the widest dtype."""

MAX_TENSORS = 4096
"""Of a request; a large language model's cache has a few hundred."""


def read_rest(body: bytes, json_bytes: int | None) -> InferRequest:
    """The request in an HTTP body: JSON, with binary tensors behind it.

    Args:
        body: The whole of it.
        json_bytes: How much of it is JSON; ``None``: all.

    Raises:
        RequestError: It is not what the protocol says.
    """
    if json_bytes is not None and json_bytes > len(body):
        raise RequestError(
            f"`Inference-Header-Content-Length` must be at most {len(body)}, got {json_bytes}."
        )
    head = body if json_bytes is None else body[:json_bytes]
    try:
        values = orjson.loads(head)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body must be JSON, got: {error}.") from None
    if not isinstance(values, dict):
        raise RequestError(f"The body must be a JSON object, got {shown(values)}.")
    rest = memoryview(body)[len(head) :]
    inputs = []
    for index, value in enumerate(_objects("inputs", values.get("inputs"))):
        where = f"inputs[{index}]"
        size = _parameters(where, value).get("binary_data_size")
        if size is None:
            inputs.append(_of_json(where, value))
            continue
        if type(size) is not int or not 0 <= size <= len(rest):
            raise RequestError(
                f"`{where}.parameters.binary_data_size` must be at most the {len(rest)} bytes "
                f"that are left, got {shown(size)}."
            )
        inputs.append(_of_bytes(where, value, rest[:size]))
        rest = rest[size:]
    if len(rest):
        raise RequestError(f"The body must end with its last tensor, got {len(rest)} bytes more.")
    parameters = _parameters("request", values)
    binary = parameters.get("binary_data_output", False) is True
    outputs = [
        RequestedOutput(
            _name(f"outputs[{index}]", value),
            {"binary_data": binary, **_parameters(f"outputs[{index}]", value)},
        )
        for index, value in enumerate(_objects("outputs", values.get("outputs", [])))
    ]
    identity = values.get("id")
    if identity is not None and not isinstance(identity, str):
        raise RequestError(f"`id` must be a string, got {shown(identity)}.")
    # The path has the model's name.
    return InferRequest(
        "", inputs, identity, parameters=parameters, request_outputs=outputs or None
    )


def tensor_array(
    where: str, datatype: Any, shape: Any, raw: bytes | memoryview | None, values: Any = None
) -> NDArray[Any]:
    """The array of a tensor that holds what it says; it may not be written to.

    Args:
        where: What messages call it.
        datatype: One of `DATATYPES`.
        shape: A list of sizes.
        raw: Its bytes, in C order, little-endian; ``None``: `values` are its numbers.
        values: A list, of numbers or of lists of them.

    Raises:
        RequestError: It does not.
    """
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise RequestError(
            f"`{where}.datatype` must be one of {list(DATATYPES)}, got {shown(datatype)}."
        )
    if (
        not isinstance(shape, Sequence)
        or isinstance(shape, str)
        or len(shape) > MAX_RANK
        or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
        # numpy multiplies the others where one is 0; elsewhere the bytes say that there are fewer.
        or (0 in shape and math.prod(size or 1 for size in shape) >= MAX_EMPTY)
    ):
        raise RequestError(f"`{where}.shape` must be a list of sizes >= 0, got {shown(shape)}.")
    dtype = np.dtype(DATATYPES[datatype])
    elements = math.prod(shape)
    if raw is None:
        raw = _numbers(where, dtype, values, elements).tobytes()
    if len(raw) != elements * dtype.itemsize:
        raise RequestError(
            f"`{where}` must have {elements * dtype.itemsize} bytes for {datatype} of shape "
            f"{list(shape)}, got {len(raw)}."
        )
    return np.frombuffer(raw, dtype).reshape(shape)


def array_of(tensor: InferInput) -> NDArray[Any]:
    """The array of a tensor that `read_rest` read; it may not be written to."""
    data: Any = tensor.data
    array: NDArray[Any] = data
    return array


def _of_json(where: str, value: Mapping[str, Any]) -> InferInput:
    if "data" not in value:
        raise RequestError(
            f"`{where}` must have `data`, or `binary_data_size` in its parameters, got neither."
        )
    return _input(where, value, None)


def _of_bytes(where: str, value: Mapping[str, Any], raw: memoryview) -> InferInput:
    if "data" in value:
        raise RequestError(f"`{where}` must have `data` or `binary_data_size`, got both.")
    return _input(where, value, raw)


def _input(where: str, value: Mapping[str, Any], raw: memoryview | None) -> InferInput:
    name, datatype = _name(where, value), value.get("datatype")
    array = tensor_array(where, datatype, value.get("shape"), raw, value.get("data"))
    tensor = InferInput(name, list(array.shape), str(datatype))
    held: Any = tensor
    held.data = array
    return tensor


def _numbers(where: str, dtype: np.dtype[Any], values: Any, elements: int) -> NDArray[Any]:
    """`values` as an array of `dtype`, if each is a number that it can be."""
    # Before numpy, which pads texts to the longest, and takes true for 1 beside a number.
    right = isinstance(values, list) and _types(values) <= _KINDS[dtype.kind]
    try:
        array = np.array(values if right else None)
    # Lists of unequal lengths, or deeper than numpy goes.
    except ValueError:
        array = np.array(None)
    if array.size == 0 and elements == 0 and isinstance(values, list):
        return np.empty(0, dtype)
    if array.dtype.kind == "O":
        raise RequestError(f"`{where}.data` must be a list for {dtype}, got {shown(values)}.")
    if dtype.kind in "iu":
        if array.dtype.kind == "f":
            # No integer type of numpy has all of them, and floats would round them.
            array = np.array(values, object)
        info = np.iinfo(dtype)
        if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
            raise RequestError(
                f"`{where}.data` must be from {info.min} to {info.max} for {dtype}, got "
                f"{shown(values)}."
            )
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(cast).all():
        raise RequestError(f"`{where}.data` must be finite in {dtype}, got a number that is not.")
    return cast


def _types(values: list[Any]) -> set[type]:
    """Of everything in `values` and the lists in it, which may nest deeper than Python calls."""
    found: set[type] = set()
    left = [values]
    while left:
        types = set(map(type, one := left.pop()))
        if list in types:
            left += [value for value in one if type(value) is list]
        found |= types - {list}
    return found


def _objects(where: str, values: Any) -> list[Mapping[str, Any]]:
    if (
        not isinstance(values, list)
        or len(values) > MAX_TENSORS
        or not all(isinstance(value, dict) for value in values)
    ):
        raise RequestError(
            f"`{where}` must be a list of at most {MAX_TENSORS} objects, got {shown(values)}."
        )
    return values


def _name(where: str, value: Mapping[str, Any]) -> str:
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"`{where}.name` must be the name of a tensor, got {shown(name)}.")
    return name


def _parameters(where: str, value: Mapping[str, Any]) -> dict[str, Any]:
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"`{where}.parameters` must be an object, got {shown(parameters)}.")
    return parameters
