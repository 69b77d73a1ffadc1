"""Arrays in and out of files: ``.npy`` and ``.npz``, never pickled objects, never half a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.atomic_file import replacing_file
from causal_attn.errors import InputError, UsageError

__all__ = ["read_arrays", "write_arrays"]


def read_arrays(sources: Sequence[str], argument: str = "inputs") -> dict[str, NDArray[Any]]:
    """Read named arrays.

    Args:
        sources: ``file.npz`` (its own names), ``name=file.npy``, or ``file.npy`` (named after the
            file).
        argument: What errors call `sources`.

    Raises:
        InputError: A file is missing or not what it says, or a name comes twice.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for source in sources:
        name, separator, file = source.partition("=")
        path = Path(file if separator else source)
        for key, array in _read(path, name if separator else path.stem, argument).items():
            if key in arrays:
                raise InputError(f"`{argument}` must give every name once, got {key!r} twice.")
            arrays[key] = array
    return arrays


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], flag: str = "--out") -> None:
    """Write an ``.npz``; an older file at `path` is replaced once the new one is complete.

    Raises:
        UsageError: `path` does not end in ``.npz``, or the place cannot be written.
    """
    if path.suffix != ".npz":
        raise UsageError(f"`{flag}` must end in .npz, got {path.name!r}.")
    # Not np.savez: it takes arrays as keyword arguments, so none may be called "file".
    with replacing_file(path, flag) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read(path: Path, name: str, argument: str) -> dict[str, NDArray[Any]]:
    if path.suffix not in (".npy", ".npz"):
        raise InputError(f"`{argument}` must be .npz or .npy files, got {str(path)!r}.")
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(
            f"`{argument}` must be files that can be read, got {str(path)!r}: "
            f"{error.strerror or error}."
        ) from None
    try:
        with file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                with loaded:
                    return {key: loaded[key] for key in loaded.files}
    # A damaged header or archive ends in whatever numpy, zipfile, zlib, ast or the allocator
    # raise at that byte, and none of them says which file it was.
    except Exception as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"`{argument}` must hold arrays of plain numbers, got {str(path)!r}: {words[0]}"
        ) from error
    return {name: loaded}
