r"""The digest that binds a certificate to a model, and our two entries in the model's metadata.

Definition. The digest is the sha256 of this byte string, in hex:

1. every top-level field of the ``ModelProto``, tag and length included, as it stands in the file
   and in that order, except the ``metadata_props`` entries whose key starts with
   ``causal_attn.``;
2. then, for each distinct external data location in the model, in the order of its UTF-8 bytes:
   one zero byte, the sha256 of the location, the sha256 of the whole file.

A zero byte can not begin a protobuf field, so no two models share the string. Without external
data and without our entries it is the plain sha256 of the file.

A reader MUST refuse a model that is not well-formed, an external location that is absolute, has
``..`` or leads outside the model's folder, and data that ends before a tensor does: at its
``offset + length``, or where no length is given at what its dims take. A writer MUST NOT change
any byte of step 1 when it sets our entries, so the digest is the same before and after. A writer
MAY put our entries anywhere at the top level. The bytes are what is hashed: a model that was
parsed and serialised again MAY have another digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from causal_attn.atomic_file import replacing_file
from causal_attn.errors import PackageError, UsageError
from causal_attn.json_text import MAX_JSON_BYTES
from causal_attn.package.hold import HeldModel, hold_model, read_model_bytes
from causal_attn.package.protobuf import MAX_MODEL_BYTES, Field, metadata, metadata_record

__all__ = [
    "CERTIFICATE_KEY",
    "CONTRACT_KEY",
    "PREFIX",
    "external_files",
    "held_digest",
    "held_metadata",
    "model_digest",
    "read_metadata",
    "write_metadata",
]

PREFIX = "causal_attn."
CONTRACT_KEY = PREFIX + "contract"
CERTIFICATE_KEY = PREFIX + "certificate"


def model_digest(path: str | os.PathLike[str]) -> str:
    """The digest of the model at `path` and its external data: 64 hex digits.

    External data is read in pieces: the memory it takes does not grow with it.

    Raises:
        PackageError: `path` is not an ONNX model, or its external data is missing, too short, too
            long or outside the model's folder.
    """
    with hold_model(path) as held:
        return held_digest(held)


def held_digest(held: HeldModel) -> str:
    """The digest of a model that is held: as `model_digest`.

    Raises:
        PackageError: It is not an ONNX model, or its external data changed since it was held.
    """
    digest = hashlib.sha256()
    view = memoryview(held.data)
    for start, end in _without(len(view), [field for field, _, _ in _ours(held.path, held.data)]):
        digest.update(view[start:end])
    for location, file in held.files.items():
        digest.update(b"\0" + hashlib.sha256(location.encode()).digest() + file.sha256)
    return digest.hexdigest()


def external_files(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The external data files of the model at `path`: location -> real path, sorted.

    Raises:
        PackageError: As `model_digest`.
    """
    with hold_model(path) as held:
        return {name: Path(os.path.realpath(file.path)) for name, file in held.files.items()}


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Our entries in the ``metadata_props`` of the model at `path`.

    Raises:
        PackageError: `path` is not an ONNX model, or has one of our entries twice.
    """
    return _entries(Path(path), read_model_bytes(Path(path)))


def held_metadata(held: HeldModel) -> dict[str, str]:
    """Our entries in the ``metadata_props`` of a model that is held: as `read_metadata`.

    Raises:
        PackageError: It is not an ONNX model, or has one of our entries twice.
    """
    return _entries(held.path, held.data)


def write_metadata(path: str | os.PathLike[str], entries: Mapping[str, str]) -> None:
    """Replace our ``metadata_props`` entries by `entries`, touching no other byte.

    The new file takes the place of the old one at once: an interruption leaves the old one.

    Args:
        path: An ONNX model; a link to one stays a link.
        entries: Keys that start with ``causal_attn.``, and text of at most 4 MiB each. Empty
            takes our entries out.

    Raises:
        UsageError: A key is not ours, or a value is too long or not Unicode text.
        PackageError: `path` is not an ONNX model or cannot be written, or the new one would be
            larger than protobuf can read.
    """
    records = b"".join(_record(key, value) for key, value in sorted(entries.items()))
    path = Path(os.path.realpath(path))
    data = read_model_bytes(path)
    kept = list(_without(len(data), [field for field, _, _ in _ours(path, data)]))
    if sum(end - start for start, end in kept) + len(records) > MAX_MODEL_BYTES:
        raise PackageError(
            f"The model must stay below 2 GiB with its certificate: {path}. Keep its weights "
            "as external data."
        )
    with replacing_file(path, error=PackageError) as file:
        for start, end in kept:
            file.write(memoryview(data)[start:end])
        file.write(records)


def _record(key: str, value: str) -> bytes:
    if not key.startswith(PREFIX):
        raise UsageError(f"`entries` must have keys that start with {PREFIX!r}, got {key!r}.")
    try:
        record = metadata_record(key, value)
    except UnicodeEncodeError:
        raise UsageError(f"`entries[{key!r}]` must be Unicode text, got a surrogate.") from None
    if len(record) > MAX_JSON_BYTES:
        raise UsageError(
            f"`entries[{key!r}]` must be at most {MAX_JSON_BYTES} bytes, got {len(record)}."
        )
    return record


def _ours(path: Path, data: bytes) -> Iterator[tuple[Field, str, str]]:
    try:
        yield from (entry for entry in metadata(data) if entry[1].startswith(PREFIX))
    except PackageError as error:
        # The reader sees bytes only; a person wants to know whose.
        raise type(error)(f"{path}: {error}") from None


def _entries(path: Path, data: bytes) -> dict[str, str]:
    entries: dict[str, str] = {}
    for _, key, value in _ours(path, data):
        if key in entries:
            raise PackageError(f"The model must have {key!r} once in its metadata: {path}.")
        entries[key] = value
    return entries


def _without(size: int, cut: list[Field]) -> Iterator[tuple[int, int]]:
    start = 0
    for field in cut:
        if start < field.start:
            yield start, field.start
        start = field.end
    if start < size:
        yield start, size
