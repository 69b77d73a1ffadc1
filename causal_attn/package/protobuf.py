"""The few things read from an ONNX file without onnx: metadata and external data locations.

An ONNX file is one protobuf message, ``ModelProto``. On the wire a message is a sequence of
fields, each a tag (``number << 3 | wire type``) and a value that says its own length, so one can
step over whatever is of no interest. Source: the protobuf encoding guide and ``onnx.proto3``.

Where protobuf would merge, keep the last of two, or drop an unknown value, different readers can
be made to see different models. Everything here either covers all readings or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from causal_attn.errors import PackageError
from causal_attn.json_text import shown

__all__ = [
    "ELEMENT_BITS",
    "MAX_FIELDS",
    "MAX_MODEL_BYTES",
    "TENSOR_PATHS",
    "ExternalData",
    "Field",
    "external_data",
    "fields",
    "inlined",
    "metadata",
    "metadata_record",
]

MAX_MODEL_BYTES = (1 << 31) - 1
"""Protobuf's own limit on one message; larger weights are external data."""

MAX_DEPTH = 100
"""Messages inside messages, protobuf's own default limit."""

MAX_FIELDS = 1 << 21
"""Fields that one pass over a model looks at, a few seconds. A graph of 50,000 nodes has half as
many; an empty field takes two bytes, so that a small file could keep a reader busy for minutes."""

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

ELEMENT_BITS: dict[int, int] = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64,
    15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
    27: 6, 28: 6,
}  # fmt: skip
"""TensorProto.DataType -> bits of one element in external data; strings cannot be external."""

# More than any tensor has.
_MAX_DIMS_BYTES = 1 << 10

_GRAPH, _METADATA_PROPS = 7, 14  # ModelProto
_INITIALIZER = 5  # GraphProto
_DIMS, _DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 9, 13, 14  # TensorProto
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
    """Where a tensor says its bytes are."""

    location: str
    offset: int
    length: int | None
    """``None``: not said."""
    bytes_of_dims: int | None
    """What its dims and dtype take; ``None`` for a dtype that is not in `ELEMENT_BITS`."""
    initializer: bool
    """Whether it is a dense initializer of the main graph, where most weights are."""

    @property
    def size(self) -> int | None:
        """Bytes from `offset` on that belong to the tensor; ``None`` where nothing tells."""
        return self.bytes_of_dims if self.length is None else self.length


class _Pass:
    """Counts the fields that one pass over a model looks at."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_FIELDS


def fields(
    data: bytes, start: int = 0, end: int | None = None, counted: _Pass | None = None
) -> Iterator[Field]:
    """The fields of the message in ``data[start:end]``, in the order of the file.

    Args:
        data: The file.
        start: Where the message begins.
        end: Where it ends; ``None``: with the file.
        counted: The pass that this is part of; ``None``: one of its own.

    Raises:
        PackageError: These bytes are not a protobuf message, or the pass has seen `MAX_FIELDS`.
    """
    end = len(data) if end is None else end
    counted = counted or _Pass()
    position = start
    while position < end:
        counted.left -= 1
        if counted.left < 0:
            raise PackageError(
                f"The model must have at most {MAX_FIELDS} protobuf fields, got more at byte "
                f"{position}."
            )
        # Almost every tag and size is one byte, and a call for each is half of the time.
        tag, value_start = data[position], position + 1
        if tag >= 0x80:
            tag, value_start = _varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag >= 1 << 32:
            raise _malformed(position, f"a field numbered {number}")
        value = 0
        if wire_type == _VARINT:
            value, stop = _varint(data, value_start, end)
        elif wire_type == _BYTES:
            if value_start < end and data[value_start] < 0x80:
                size, value_start = data[value_start], value_start + 1
            else:
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


def metadata(data: bytes) -> Iterator[tuple[Field, str, str]]:
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


def external_data(data: bytes) -> Iterator[ExternalData]:
    """Every place outside the file that a tensor anywhere in the model reads from.

    A tensor counts as external if it says so or if it names a location: the two may stand in
    pieces that a protobuf reader merges.

    Raises:
        PackageError: `data` is not an ONNX model, or an external tensor names no location.
    """
    counted = _Pass()
    pending = [_Message("ModelProto", 0, len(data), 1, False)]
    while pending:
        message = pending.pop()
        if message.kind == "TensorProto":
            place = _tensor_place(data, message, counted)
            if place is not None:
                yield place
            continue
        for field in fields(data, message.start, message.end, counted):
            child = _child(message, field)
            if child is not None:
                pending.append(child)


def inlined(data: bytes, content: Callable[[ExternalData], bytes | None]) -> bytes:
    """The model with external tensors turned into tensors that hold their bytes.

    Args:
        data: The model.
        content: The bytes of a tensor; ``None`` leaves it external.

    Raises:
        PackageError: As `external_data`, or the model would be larger than protobuf can read.
    """
    changed = _inlined(data, _Message("ModelProto", 0, len(data), 1, False), content, _Pass())
    if changed is None:
        return data
    if len(changed) > MAX_MODEL_BYTES:
        raise PackageError(
            "The model must stay below 2 GiB with the external data that it needs inside, got "
            f"{len(changed)} bytes."
        )
    return changed


class _Message(NamedTuple):
    """A message on the way to a tensor: its type and the byte offsets of its fields."""

    kind: str
    start: int
    end: int
    depth: int
    main: bool
    """A main graph, or one of its dense initializers."""


def _child(parent: _Message, field: Field) -> _Message | None:
    kind = TENSOR_PATHS[parent.kind].get(field.number)
    if kind is None or field.wire_type != _BYTES:
        return None
    if parent.depth >= MAX_DEPTH:
        raise PackageError(
            f"The model must nest at most {MAX_DEPTH} messages, got more at byte {field.start}."
        )
    main = (parent.kind == "ModelProto" and field.number == _GRAPH) or (
        parent.kind == "GraphProto" and parent.main and field.number == _INITIALIZER
    )
    return _Message(kind, field.value_start, field.end, parent.depth + 1, main)


def _inlined(
    data: bytes,
    message: _Message,
    content: Callable[[ExternalData], bytes | None],
    counted: _Pass,
) -> bytes | None:
    """The new content of `message`; ``None`` if it stays as it is."""
    if message.kind == "TensorProto":
        place = _tensor_place(data, message, counted)
        held = None if place is None else content(place)
        if held is None:
            return None
        kept = [
            data[field.start : field.end]
            for field in fields(data, message.start, message.end, counted)
            if field.number not in (_EXTERNAL_DATA, _DATA_LOCATION)
        ]
        return b"".join([*kept, _tag(_RAW_DATA), _to_varint(len(held)), held])
    pieces: list[bytes] = []
    position = message.start
    for field in fields(data, message.start, message.end, counted):
        child = _child(message, field)
        changed = None if child is None else _inlined(data, child, content, counted)
        if changed is not None:
            pieces += [
                data[position : field.start],
                _tag(field.number),
                _to_varint(len(changed)),
                changed,
            ]
            position = field.end
    return b"".join([*pieces, data[position : message.end]]) if pieces else None


def _tensor_place(data: bytes, message: _Message, counted: _Pass) -> ExternalData | None:
    external = False
    entries: dict[str, str] = {}
    elements, data_type = 1, 0
    for field in fields(data, message.start, message.end, counted):
        if field.number == _EXTERNAL_DATA and field.wire_type == _BYTES:
            key, value = _entry(data, field)
            if key in entries:
                raise PackageError(f"A tensor's external data must name {shown(key)} once.")
            entries[key] = value
        elif field.number == _DATA_LOCATION and field.wire_type == _VARINT:
            # Protobuf keeps the low 32 bits of an enum, and drops values it does not know.
            external |= field.value & 0xFFFFFFFF == _EXTERNAL
        elif field.number == _DIMS:
            for size in _integers(data, field):
                # A product of many large dims would be a number without end.
                elements = min(elements * size, 1 << 64)
        elif field.number == _DATA_TYPE and field.wire_type == _VARINT:
            data_type = field.value & 0xFFFFFFFF
    if not external and not entries:
        return None
    if "location" not in entries:
        raise PackageError(
            f"A tensor with external data must name a location, got {shown(entries)}."
        )
    bits = ELEMENT_BITS.get(data_type)
    return ExternalData(
        location=entries["location"],
        offset=_count("offset", entries.get("offset", "0")),
        length=None if "length" not in entries else _count("length", entries["length"]),
        bytes_of_dims=None if bits is None else (elements * bits + 7) // 8,
        initializer=message.main,
    )


def _integers(data: bytes, field: Field) -> Iterator[int]:
    """The integers of a repeated field, which may be packed."""
    if field.wire_type == _VARINT:
        yield field.value
    elif field.wire_type == _BYTES:
        position = field.value_start
        if field.end - position > _MAX_DIMS_BYTES:
            raise _malformed(field.start, f"{field.end - position} bytes of dims")
        while position < field.end:
            value, position = _varint(data, position, field.end)
            yield value


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise PackageError(
            f"The {name} of external data must be a decimal count of bytes, got {shown(text)}."
        )
    return int(text)


def _entry(data: bytes, entry: Field) -> tuple[str, str]:
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


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
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
