"""A writer of small ONNX models that needs no onnx: these tests also run where it is missing.

Fields are numbered as in the published ``onnx.proto``: https://github.com/onnx/onnx.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Node", "Tensor", "graph", "model"]

_ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
_FLOAT, _INT, _STRING, _GRAPH, _INTS = 1, 2, 3, 5, 7

Attribute: TypeAlias = "float | int | str | bytes | Sequence[int]"
"""Bytes are a graph, made by `graph`."""


@dataclass(frozen=True)
class Tensor:
    """A graph input or output: a string in `dims` is a named dim."""

    name: str
    dims: Sequence[str | int]
    dtype: str = "float32"


@dataclass(frozen=True)
class Node:
    """One node; attributes are floats, integers, strings, lists of integers or graphs."""

    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str = ""
    domain: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


def model(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    nodes: Sequence[Node],
    constants: Mapping[str, NDArray[np.generic]] | None = None,
    *,
    opset: int = 18,
    metadata: Mapping[str, str] | None = None,
    external: Mapping[str, str] | None = None,
) -> bytes:
    """The serialized ``ModelProto``.

    Args:
        inputs: Of the graph.
        outputs: Of the graph.
        nodes: In an order in which they can run.
        constants: Initializers.
        opset: Of the default domain.
        metadata: ``metadata_props``.
        external: Constants whose bytes are a file, from its beginning: name -> location.
    """
    domains = dict.fromkeys(node.domain for node in nodes) | {"": None}
    return b"".join(
        [
            _integer(1, 8),
            _bytes(7, graph(inputs, outputs, nodes, constants, external=external)),
            *(
                _bytes(8, _text(1, domain) + _integer(2, 1 if domain else opset))
                for domain in domains
            ),
            *(
                _bytes(14, _text(1, key) + _text(2, value))
                for key, value in (metadata or {}).items()
            ),
        ]
    )


def graph(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    nodes: Sequence[Node],
    constants: Mapping[str, NDArray[np.generic]] | None = None,
    *,
    external: Mapping[str, str] | None = None,
) -> bytes:
    """The serialized ``GraphProto``; arguments as those of `model`."""
    places = external or {}
    return b"".join(
        [
            *(_bytes(1, _node(node)) for node in nodes),
            _text(2, "graph"),
            *(
                _bytes(5, _constant(name, value, places.get(name)))
                for name, value in (constants or {}).items()
            ),
            *(_bytes(11, _value_info(tensor)) for tensor in inputs),
            *(_bytes(12, _value_info(tensor)) for tensor in outputs),
        ]
    )


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _value_info(tensor: Tensor) -> bytes:
    dims = b"".join(
        _bytes(1, _text(2, dim) if isinstance(dim, str) else _integer(1, dim))
        for dim in tensor.dims
    )
    tensor_type = _integer(1, _ELEMENT_TYPES[tensor.dtype]) + _bytes(2, dims)
    return _text(1, tensor.name) + _bytes(2, _bytes(1, tensor_type))


def _constant(name: str, value: NDArray[np.generic], location: str | None) -> bytes:
    content = [_bytes(9, value.tobytes())]
    if location is not None:
        entries = {"location": location, "offset": "0", "length": str(value.nbytes)}
        content = [_bytes(13, _text(1, key) + _text(2, text)) for key, text in entries.items()]
        content.append(_integer(14, 1))
    return b"".join(
        [
            *(_integer(1, size) for size in value.shape),
            _integer(2, _ELEMENT_TYPES[value.dtype.name]),
            _text(8, name),
            *content,
        ]
    )


def _node(node: Node) -> bytes:
    return b"".join(
        [
            *(_text(1, name) for name in node.inputs),
            *(_text(2, name) for name in node.outputs),
            _text(3, node.name),
            _text(4, node.op_type),
            *(_bytes(5, _attribute(name, value)) for name, value in node.attributes.items()),
            _text(7, node.domain),
        ]
    )


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, bytes):
        typed = _bytes(6, value) + _integer(20, _GRAPH)
    elif isinstance(value, float):
        typed = _varint(2 << 3 | 5) + struct.pack("<f", value) + _integer(20, _FLOAT)
    elif isinstance(value, int):
        typed = _integer(3, value) + _integer(20, _INT)
    elif isinstance(value, str):
        typed = _text(4, value) + _integer(20, _STRING)
    else:
        typed = b"".join(_integer(8, item) for item in value) + _integer(20, _INTS)
    return _text(1, name) + typed
