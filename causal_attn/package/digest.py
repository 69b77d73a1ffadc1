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
``..`` or leads outside the model's folder, and data that ends before a tensor's
``offset + length``. A writer MUST NOT change any byte of step 1 when it sets our entries, so the
digest is the same before and after. A writer MAY put our entries anywhere at the top level. The
bytes are what is hashed: a model that was parsed and serialised again MAY have another digest.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from causal_attn.errors import PackageError, UsageError
from causal_attn.json_text import MAX_JSON_BYTES
from causal_attn.package.confine import confined_file, open_regular
from causal_attn.package.protobuf import (
    MAX_MODEL_BYTES,
    Buffer,
    Field,
    external_data,
    metadata,
    metadata_record,
)

__all__ = [
    "CERTIFICATE_KEY",
    "CONTRACT_KEY",
    "PREFIX",
    "external_files",
    "model_digest",
    "read_metadata",
    "write_metadata",
]

PREFIX = "causal_attn."
CONTRACT_KEY = PREFIX + "contract"
CERTIFICATE_KEY = PREFIX + "certificate"

_CHUNK_BYTES = 1 << 20


def model_digest(path: str | os.PathLike[str]) -> str:
    """The digest of the model at `path` and its external data: 64 hex digits.

    Reads in pieces: the memory it takes does not grow with the model.

    Raises:
        PackageError: `path` is not an ONNX model, or its external data is missing, too short or
            outside the model's folder.
    """
    path = Path(path)
    with _mapped(path) as data:
        digest = hashlib.sha256()
        for start, end in _without(len(data), [field for field, _, _ in _ours(data)]):
            for position in range(start, end, _CHUNK_BYTES):
                digest.update(data[position : min(position + _CHUNK_BYTES, end)])
        for location, file in _external_files(path, data).items():
            digest.update(b"\0" + hashlib.sha256(location.encode()).digest() + _sha256(file))
    return digest.hexdigest()


def external_files(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The external data files of the model at `path`: location -> real path, sorted.

    Raises:
        PackageError: As `model_digest`.
    """
    path = Path(path)
    with _mapped(path) as data:
        return _external_files(path, data)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Our entries in the ``metadata_props`` of the model at `path`.

    Raises:
        PackageError: `path` is not an ONNX model, or has one of our entries twice.
    """
    entries: dict[str, str] = {}
    with _mapped(Path(path)) as data:
        for _, key, value in _ours(data):
            if key in entries:
                raise PackageError(f"The model must have {key!r} once in its metadata: {path}.")
            entries[key] = value
    return entries


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
    with _mapped(path) as data:
        kept = list(_without(len(data), [field for field, _, _ in _ours(data)]))
        if sum(end - start for start, end in kept) + len(records) > MAX_MODEL_BYTES:
            raise PackageError(
                f"The model must stay below 2 GiB with its certificate: {path}. Keep its weights "
                "as external data."
            )
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with open(new, "xb") as file:
                for start, end in kept:
                    for position in range(start, end, _CHUNK_BYTES):
                        file.write(data[position : min(position + _CHUNK_BYTES, end)])
                file.write(records)
                file.flush()
                os.fsync(file.fileno())
            new.chmod(path.stat().st_mode & 0o7777)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise PackageError(f"The model cannot be written: {error}.") from None
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    # Windows replaces a file only once it is no longer mapped.
    try:
        os.replace(new, path)
    except BaseException as error:
        new.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise PackageError(f"The model cannot be replaced: {error}.") from None
        raise


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


@contextmanager
def _mapped(path: Path) -> Iterator[Buffer]:
    with open_regular(path, "The model") as file:
        size = os.fstat(file.fileno()).st_size
        if not 0 < size <= MAX_MODEL_BYTES:
            raise PackageError(
                f"The model must be an ONNX file of 1 byte to 2 GiB, got {size} bytes: {path}."
            )
        try:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise PackageError(f"The model must be a readable file: {path}: {error}.") from None
        with mapped:
            try:
                yield mapped
            except PackageError as error:
                # The readers below see bytes only; a person wants to know whose.
                if str(path) in str(error):
                    raise
                raise type(error)(f"{path}: {error}") from None


def _ours(data: Buffer) -> Iterator[tuple[Field, str, str]]:
    return (entry for entry in metadata(data) if entry[1].startswith(PREFIX))


def _without(size: int, cut: list[Field]) -> Iterator[tuple[int, int]]:
    start = 0
    for field in cut:
        if start < field.start:
            yield start, field.start
        start = field.end
    if start < size:
        yield start, size


def _external_files(path: Path, data: Buffer) -> dict[str, Path]:
    folder = path.parent
    files: dict[str, Path] = {}
    sizes: dict[str, int] = {}
    for location, offset, length in external_data(data):
        if location not in files:
            files[location] = confined_file(
                folder, folder, location, "The location of external data"
            )
            sizes[location] = files[location].stat().st_size
        if offset + (length or 0) > sizes[location]:
            raise PackageError(
                f"The external data {location!r} must have {offset + (length or 0)} bytes, got "
                f"{sizes[location]}: it was cut short, or belongs to another model."
            )
    return dict(sorted(files.items(), key=lambda item: item[0].encode()))


def _sha256(file: Path) -> bytes:
    digest = hashlib.sha256()
    with open_regular(file, "External data") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
