"""Arrays from files: whatever is wrong with one, the error is ours and names it."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from causal_attn.cli.array_files import read_arrays
from causal_attn.errors import InputError


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npy(header: bytes) -> bytes:
    """A file with `header`, padded as the format asks, and no data."""
    padded = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


def with_member(content: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


def damaged_stream() -> bytes:
    """The compressed bytes of the one member are overwritten."""
    whole = bytearray(npz(x=np.arange(1000.0)))
    whole[80:200] = bytes(120)
    return bytes(whole)


HUGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807,), }"
DAMAGED = {
    "stream.npz": damaged_stream(),
    "cut.npz": npz(x=np.arange(100.0))[:-30],
    "token.npy": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,"),
    "token.npz": with_member(npy(b"{'descr': ((((")),
    "not_utf8.npy": npy(b"{'descr': '\xff', 'fortran_order': False, 'shape': (3,), }"),
    "huge.npy": npy(HUGE),
    "huge.npz": with_member(npy(HUGE)),
    "large.npz": with_member(npy(HUGE.replace(b"9223372036854775807", b"1152921504606846"))),
    "negative.npy": npy(HUGE.replace(b"9223372036854775807", b"-3")),
    "short.npy": npy(HUGE.replace(b"9223372036854775807", b"3")),
    "empty.npy": b"",
    "magic.npy": b"\x93NUMPY",
    "method.npz": with_member(npy(b"{}"), zipfile.ZIP_LZMA).replace(b"\x0e\x00", b"\x63\x00"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(DAMAGED[name])
    with pytest.raises(InputError, match=r"`--example` must hold arrays") as caught:
        read_arrays([str(path)], "--example")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_cut_and_every_flipped_byte(tmp_path: Path) -> None:
    whole = npz(x=np.arange(20.0), y=np.eye(3, dtype=np.float32))
    path = tmp_path / "x.npz"
    rng = np.random.default_rng(0)
    variants = [whole[:end] for end in range(0, len(whole), 7)]
    for place in rng.integers(0, len(whole), 300):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        variants.append(bytes(changed))
    refused = 0
    for variant in variants:
        path.write_bytes(variant)
        try:
            read_arrays([str(path)])
        except InputError:
            refused += 1
    assert refused > len(variants) / 2
