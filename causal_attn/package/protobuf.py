"""The few things read from an ONNX file without onnx: metadata and external data locations.

An ONNX file is one protobuf message, ``ModelProto``. On the wire a message is a sequence of
fields, each a tag (``number << 3 | wire type``) and a value that says its own length, so one can
step over whatever is of no interest. Source: the protobuf encoding guide and ``onnx.proto3``.

Where protobuf would merge, keep the last of two, or drop an unknown value, different readers can
be made to see different models. Everything here either covers all readings or refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple, TypeAlias

from causal_attn.errors import PackageError
from causal_attn.json_text import shown

__all__ = [
    "MAX_MODEL_BYTES",
    "TENSOR_PATHS",
    "Buffer",
    "ExternalData",
    "Field",
    "external_data",
    "fields",
    "metadata",
    "metadata_record",
]

Buffer: TypeAlias = "bytes | mmap"

MAX_MODEL_BYTES = (1 << 31) - 1
"""Protobuf's own limit on one message; larger weights are external data."""

MAX_DEPTH = 100
"""Messages inside messages, protobuf's own default limit."""

TENSOR_PATHS: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
"""Message type -> field number -> type of that field, for every way down to a tensor."""

_GRAPH, _METADATA_PROPS = 7, 14  # ModelProto
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # TensorProto
_EXTERNAL = 1  # TensorProto.DataLocation
_KEY, _VALUE = 1, 2  # StringStringEntryProto

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message: the byte offsets of it and of its value, and its value."""

    number: int
    wire_type: int
    start: int
    value_start: int
    end: int
    value: int
    """The integer of a varint; 0 for the other wire types."""


class ExternalData(NamedTuple):
    """Where a tensor says its bytes are: ``length`` ``None`` is to the end of the file."""

    location: str
    offset: int
    length: int | None


def fields(data: Buffer, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message in ``data[start:end]``, in the order of the file.

    Raises:
        PackageError: These bytes are not a protobuf message.
    """
    end = len(data) if end is None else end
    position = start
    while position < end:
        tag, value_start = _varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag >= 1 << 32:
            raise _malformed(position, f"a field numbered {number}")
        value = 0
        if wire_type == _VARINT:
            value, stop = _varint(data, value_start, end)
        elif wire_type == _BYTES:
            size, value_start = _varint(data, value_start, end)
            stop = value_start + size
        elif wire_type == _FIXED64:
            stop = value_start + 8
        elif wire_type == _FIXED32:
            stop = value_start + 4
        else:
            raise _malformed(position, f"the wire type {wire_type}, which ONNX does not use")
        if stop > end:
            raise _malformed(position, f"{stop - value_start} bytes where {end - value_start} are")
        yield Field(number, wire_type, position, value_start, stop, value)
        position = stop


def metadata(data: Buffer) -> Iterator[tuple[Field, str, str]]:
    """Every ``metadata_props`` entry of a model: its field, key and value.

    Raises:
        PackageError: `data` is not an ONNX model.
    """
    has_graph = False
    for field in fields(data):
        has_graph |= field.number == _GRAPH and field.wire_type == _BYTES
        if field.number == _METADATA_PROPS and field.wire_type == _BYTES:
            yield field, *_entry(data, field)
    if not has_graph:
        raise PackageError("The model must be an ONNX file, got one without a graph.")


def metadata_record(key: str, value: str) -> bytes:
    """The bytes of one ``metadata_props`` field, as they stand at the top level of a file."""
    parts = [(_KEY, key.encode()), (_VALUE, value.encode())]
    body = b"".join(_tag(number) + _to_varint(len(text)) + text for number, text in parts)
    return _tag(_METADATA_PROPS) + _to_varint(len(body)) + body


def external_data(data: Buffer) -> Iterator[ExternalData]:
    """Every place outside the file that a tensor anywhere in the model reads from.

    A tensor counts as external if it says so or if it names a location: the two may stand in
    pieces that a protobuf reader merges.

    Raises:
        PackageError: `data` is not an ONNX model, or an external tensor names no location.
    """
    pending = [("ModelProto", 0, len(data), 1)]
    while pending:
        kind, start, end, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise PackageError(
                f"The model must nest at most {MAX_DEPTH} messages, got more at byte {start}."
            )
        if kind == "TensorProto":
            place = _tensor_place(data, start, end)
            if place is not None:
                yield place
            continue
        children = TENSOR_PATHS[kind]
        for field in fields(data, start, end):
            child = children.get(field.number)
            if child is not None and field.wire_type == _BYTES:
                pending.append((child, field.value_start, field.end, depth + 1))


def _tensor_place(data: Buffer, start: int, end: int) -> ExternalData | None:
    external = False
    entries: dict[str, str] = {}
    for field in fields(data, start, end):
        if field.number == _EXTERNAL_DATA and field.wire_type == _BYTES:
            key, value = _entry(data, field)
            if key in entries:
                raise PackageError(f"A tensor's external data must name {shown(key)} once.")
            entries[key] = value
        elif field.number == _DATA_LOCATION and field.wire_type == _VARINT:
            # Protobuf keeps the low 32 bits of an enum, and drops values it does not know.
            external |= field.value & 0xFFFFFFFF == _EXTERNAL
    if not external and not entries:
        return None
    if "location" not in entries:
        raise PackageError(
            f"A tensor with external data must name a location, got {shown(entries)}."
        )
    return ExternalData(
        location=entries["location"],
        offset=_count("offset", entries.get("offset", "0")),
        length=None if "length" not in entries else _count("length", entries["length"]),
    )


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise PackageError(
            f"The {name} of external data must be a decimal count of bytes, got {shown(text)}."
        )
    return int(text)


def _entry(data: Buffer, entry: Field) -> tuple[str, str]:
    texts: dict[int, str] = {}
    for field in fields(data, entry.value_start, entry.end):
        if field.number in (_KEY, _VALUE) and field.wire_type == _BYTES:
            if field.number in texts:
                raise _malformed(field.start, "an entry with two keys or two values")
            try:
                texts[field.number] = data[field.value_start : field.end].decode()
            except UnicodeDecodeError:
                raise _malformed(field.start, "an entry that is not UTF-8 text") from None
    return texts.get(_KEY, ""), texts.get(_VALUE, "")


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if position >= end:
            raise _malformed(position, "the end of the data inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, position
    raise _malformed(position, "a number of more than 64 bits")


def _to_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _tag(number: int) -> bytes:
    return _to_varint(number << 3 | _BYTES)


def _malformed(position: int, got: str) -> PackageError:
    return PackageError(f"The model must be an ONNX file, got {got} at byte {position}.")
