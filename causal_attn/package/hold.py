"""A model read once: the bytes that are checked are the bytes that run.

A path that is opened twice may lead to two files. So the ONNX file is read into memory once, and
what is hashed and what ONNX Runtime gets are those bytes. External data is held in one of two
ways:

- `Weights.COPY`: it is read into memory that nothing else can write to.
- `Weights.MAP`: ONNX Runtime maps the files itself, by their names inside a folder that is held
  open. `HeldModel.require_unchanged` then tells whether these names led to the files that were
  hashed all the while: each file and each folder on the way must be the same inode with the same
  size and times. A rename changes the times of what is renamed or of its folder, so an exchange
  that was undone is found too.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

from causal_attn.errors import PackageError, UsageError
from causal_attn.machine.memory import machine_bytes
from causal_attn.package.confine import confined_file, open_regular
from causal_attn.package.protobuf import MAX_MODEL_BYTES, ExternalData, external_data, inlined

__all__ = ["COPIED_BYTES", "PADDING_BYTES", "HeldFile", "HeldModel", "Weights", "hold_model"]

COPIED_BYTES = 1 << 30
"""External data up to this size is copied where the caller does not say."""

PADDING_BYTES = 1 << 20
"""Bytes that a file of external data may have behind its last tensor, for alignment."""

_CHUNK_BYTES = 1 << 20

# File systems stamp with a clock that ticks every few milliseconds: of two changes within a tick
# the second leaves the times as they are.
_TICK_SECONDS = 0.02

_Identity = tuple[int, ...]


class Weights(StrEnum):
    """What becomes of a model's external data."""

    COPY = "copy"
    """Read into memory: what happens to the file later does not matter."""
    MAP = "map"
    """Mapped: read when it is needed and shared between processes. Whoever writes into the file
    changes the answers of all of them, and whoever cuts it ends them."""


@dataclass(frozen=True)
class HeldFile:
    """One file of external data.

    Attributes:
        path: Its name through the held folder.
        size: In bytes, when it was opened.
        memory: Its bytes, if they were copied.
        identity: What it was when it was opened.
    """

    path: str
    size: int
    memory: bytearray | None
    identity: _Identity

    @cached_property
    def sha256(self) -> bytes:
        """Of its bytes, which are read in pieces.

        Raises:
            PackageError: It was replaced or changed since it was opened.
        """
        if self.memory is not None:
            return hashlib.sha256(self.memory).digest()
        digest = hashlib.sha256()
        with self.open() as file:
            for piece in _pieces(file, self.size, self.path):
                digest.update(piece)
        return digest.digest()

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on.

        Raises:
            PackageError: It was replaced or changed since it was opened.
        """
        if self.memory is not None:
            return bytes(memoryview(self.memory)[offset : offset + size])
        with self.open() as file:
            file.seek(offset)
            return b"".join(_pieces(file, size, self.path))

    def open(self) -> BufferedReader:
        """The file, opened again through the held folder.

        Raises:
            PackageError: It was replaced or changed since it was opened first.
        """
        file = open_regular(Path(self.path), "External data")
        if _identity(os.fstat(file.fileno())) != self.identity:
            file.close()
            raise _changed(self.path)
        return file


class HeldModel:
    """A model and its external data; close it when ONNX Runtime has them.

    Attributes:
        path: Where it was read.
        data: The bytes of the ONNX file.
        files: External data by location, in the order of the locations' UTF-8 bytes.
        weights: What becomes of them.
    """

    def __init__(
        self,
        path: Path,
        folder: _Folder,
        data: bytes,
        files: Mapping[str, HeldFile],
        weights: Weights,
    ) -> None:
        self.path = path
        self.data = data
        self.files = files
        self.weights = weights
        self._folder = folder
        self._on_the_way = _folders(folder.name, files) if weights is Weights.MAP else {}

    @property
    def folder(self) -> str:
        """A name of the model's folder: on Linux, of the one that is held, wherever it is now."""
        return self._folder.name

    def with_data_inside(self, *, all_of_it: bool) -> bytes:
        """The ONNX file with external tensors turned into tensors that hold their bytes.

        Args:
            all_of_it: ``False`` leaves the plain initializers of the main graph, which ONNX
                Runtime takes from memory, as they are.

        Raises:
            PackageError: The file would be larger than protobuf can read.
        """

        def content(place: ExternalData) -> bytes | None:
            if place.initializer and not all_of_it:
                return None
            return self.files[place.location].read(place.offset, _size(place))

        return inlined(self.data, content)

    def settle(self) -> None:
        """Wait until the times of mapped files are old enough to show the next change."""
        newest = max((max(seen[-2:]) for seen in self._seen().values()), default=0)
        if 0 <= time.time_ns() - newest < _TICK_SECONDS * 1e9:
            time.sleep(_TICK_SECONDS)
            self.require_unchanged()

    def require_unchanged(self) -> None:
        """Refuse mapped files whose names lead, or led meanwhile, to others.

        Raises:
            PackageError: A file, or a folder on the way to it, was replaced or written to.
        """
        for name, seen in self._seen().items():
            if _identity(_status(name)) != seen:
                raise _changed(name)

    def close(self) -> None:
        """Let go of the folder. A second call does nothing."""
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _seen(self) -> dict[str, _Identity]:
        if self.weights is not Weights.MAP:
            return {}
        return {**self._on_the_way, **{file.path: file.identity for file in self.files.values()}}


def hold_model(
    path: str | os.PathLike[str], weights: str | Weights | None = Weights.MAP
) -> HeldModel:
    """Read the model at `path` and look at its external data.

    Args:
        path: An ONNX file.
        weights: See `Weights`; ``None`` copies up to `COPIED_BYTES` and maps what is larger.

    Raises:
        UsageError: `weights` is no such word.
        PackageError: It is not an ONNX model; or its external data is missing, outside its folder,
            too short, longer than its tensors need, or more than the memory of this machine.
    """
    chosen = _weights(weights)
    path = Path(path)
    folder = _Folder(path.parent)
    try:
        data = read_model_bytes(path, Path(folder.name, path.name))
        try:
            files = _files(folder.name, data, chosen)
        except PackageError as error:
            # The readers below see bytes and the held folder; a person wants to know whose.
            message = str(error).replace(folder.name, str(path.parent))
            raise type(error)(f"{path}: {message}") from None
        copied = all(file.memory is not None for file in files.values())
        return HeldModel(path, folder, data, files, Weights.COPY if copied else Weights.MAP)
    except BaseException:
        folder.close()
        raise


def read_model_bytes(path: Path, opened: Path | None = None) -> bytes:
    """The bytes of the ONNX file at `path`, or at `opened` if that is another name of it.

    Raises:
        PackageError: It is no regular file of 1 byte to 2 GiB.
    """
    try:
        with open_regular(opened or path, "The model") as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 < size <= MAX_MODEL_BYTES:
                raise PackageError(
                    f"The model must be an ONNX file of 1 byte to 2 GiB, got {size} bytes: {path}."
                )
            data = file.read(size)
    except PackageError as error:
        raise type(error)(str(error).replace(str(opened), str(path))) from None
    except OSError as error:
        raise PackageError(f"The model must be a readable file: {path}: {error}.") from None
    if len(data) != size:
        raise _changed(str(path))
    return data


class _Folder:
    """A folder that is held open, so that its name cannot come to mean another."""

    def __init__(self, path: Path) -> None:
        self.name = os.path.realpath(path)
        self._descriptor = -1
        # Only Linux has a path through a descriptor that leads into a folder.
        if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except (OSError, ValueError):
                return
            self.name = f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _weights(weights: str | Weights | None) -> Weights | None:
    if weights is None:
        return None
    try:
        return Weights(weights)
    except ValueError:
        raise UsageError(
            f"`weights` must be one of {[str(value) for value in Weights]} or None, got "
            f"{weights!r}."
        ) from None


def _files(folder: str, data: bytes, weights: Weights | None) -> dict[str, HeldFile]:
    """External data by location, in the order of the digest."""
    places: dict[str, list[ExternalData]] = {}
    for place in external_data(data):
        places.setdefault(place.location, []).append(place)
    base = Path(folder)
    # The very names that ONNX Runtime opens. A real path would not do: the folder may get another
    # one at any time, and the old one may then lead to another folder.
    names = {
        location: os.path.join(folder, location) for location in sorted(places, key=str.encode)
    }
    for location in names:
        confined_file(base, base, location, "The location of external data")
    statuses = {location: _status(name) for location, name in names.items()}
    for location, status in statuses.items():
        _require_size(location, status.st_size, places[location])
    total = sum({(s.st_dev, s.st_ino): s.st_size for s in statuses.values()}.values())
    if total > (there := machine_bytes()):
        raise PackageError(
            f"External data must fit into memory, got {total / 2**30:.1f} GiB for "
            f"{there / 2**30:.1f} GiB. Use a larger machine."
        )
    copied = weights is Weights.COPY or (weights is None and total <= COPIED_BYTES)
    # Several locations may name one file: it is read and hashed once.
    held: dict[_Identity, HeldFile] = {}
    for location, name in names.items():
        identity = _identity(statuses[location])
        if identity not in held:
            file = HeldFile(name, statuses[location].st_size, None, identity)
            held[identity] = replace(file, memory=_copy(file)) if copied else file
    return {location: held[_identity(statuses[location])] for location in names}


def _copy(file: HeldFile) -> bytearray:
    memory, start = bytearray(file.size), 0
    view = memoryview(memory)
    with file.open() as opened:
        while start < file.size:
            got = opened.readinto(view[start : start + _CHUNK_BYTES])
            if not got:
                raise _changed(file.path)
            start += got
    return memory


def _require_size(location: str, size: int, places: list[ExternalData]) -> None:
    needed = max(place.offset + _size(place) for place in places)
    if needed > size:
        raise PackageError(
            f"The external data {location!r} must have {needed} bytes, got {size}: it was cut "
            "short, or belongs to another model."
        )
    # A length that is longer than its tensor must not make room either.
    used = max(place.offset + min(_size(place), place.bytes_of_dims or 0) for place in places)
    if size > used + PADDING_BYTES:
        raise PackageError(
            f"The external data {location!r} must end with its last tensor, at byte {used}, or "
            f"at most {PADDING_BYTES} bytes after it, got {size} bytes. Save the model again, "
            "with data of its own."
        )


def _size(place: ExternalData) -> int:
    if place.bytes_of_dims is None:
        raise PackageError(
            f"A tensor with external data in {place.location!r} must have a dtype that ONNX gives "
            "a size."
        )
    return place.bytes_of_dims if place.length is None else place.length


def _folders(folder: str, files: Mapping[str, HeldFile]) -> dict[str, _Identity]:
    """`folder` and what lies on the way to the files, links followed or not."""
    names = {folder}
    for location in files:
        name = os.path.join(folder, location)
        followed = os.path.relpath(os.path.realpath(name), os.path.realpath(folder))
        for way in (name, os.path.join(folder, followed)):
            parent = os.path.dirname(way)
            while len(parent) > len(folder) and ".." not in followed.split(os.sep):
                names.add(parent)
                parent = os.path.dirname(parent)
    return {name: _identity(_status(name)) for name in sorted(names)}


def _status(name: str) -> os.stat_result:
    try:
        return os.stat(name)
    except OSError:
        raise _changed(name) from None


def _pieces(file: BufferedReader, size: int, path: str) -> Iterator[bytes]:
    while size:
        piece = file.read(min(size, _CHUNK_BYTES))
        if not piece:
            raise _changed(path)
        size -= len(piece)
        yield piece


def _identity(status: os.stat_result) -> _Identity:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _changed(name: str) -> PackageError:
    return PackageError(
        "The model must stay as it is while it is loaded, got a change of "
        f"{os.path.basename(name)!r}. Load it again, and replace packages by renaming a new one "
        "to their place."
    )
