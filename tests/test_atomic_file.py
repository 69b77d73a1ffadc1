"""A file that is written is the old one or the new one, and nothing else is left in its folder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from causal_attn import atomic_file
from causal_attn.atomic_file import replacing_file
from causal_attn.cli.array_files import read_arrays, write_arrays
from causal_attn.errors import PackageError, UsageError
from causal_attn.picture import draw_visibility

NO_SPACE = OSError(28, "No space left on device")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX")

CHILD = """
import sys, time
from pathlib import Path
from causal_attn.atomic_file import replacing_file
with replacing_file(Path(sys.argv[1])) as file:
    file.write(bytes(100000))
    print("half", flush=True)
    time.sleep(60)
"""


def write(path: Path, content: bytes) -> None:
    with replacing_file(path) as file:
        file.write(content)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[False, True], ids=["new", "old"])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, bytes]:
    """A folder without the file, and one with an older file."""
    if request.param:
        (tmp_path / "file").write_bytes(b"old")
    return content(tmp_path)


def test_the_new_one_takes_the_place(tmp_path: Path, before: dict[str, bytes]) -> None:
    with replacing_file(tmp_path / "file") as file:
        file.write(b"n" * 100000)
        file.flush()
        assert before.items() <= content(tmp_path).items()
        assert (tmp_path / "file").exists() is bool(before)
        file.seek(0)
        file.write(b"N")
    assert content(tmp_path) == {"file": b"N" + b"n" * 99999}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine"), NO_SPACE])
def test_a_write_that_fails_midway(
    tmp_path: Path, before: dict[str, bytes], error: BaseException
) -> None:
    wanted = UsageError if error is NO_SPACE else type(error)

    def write_half() -> None:
        with replacing_file(tmp_path / "file") as file:
            file.write(bytes(100000))
            raise error

    with pytest.raises(wanted) as caught:
        write_half()
    assert wanted is UsageError or caught.value is error
    assert content(tmp_path) == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), NO_SPACE])
def test_a_step_of_the_system_that_fails(
    tmp_path: Path,
    before: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: BaseException,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write(tmp_path / "file", b"new")
    assert content(tmp_path) == before


@POSIX
def test_a_disk_that_is_full(tmp_path: Path, before: dict[str, bytes]) -> None:
    """The system's own error, from a limit on the size of files."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from causal_attn.atomic_file import replacing_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with replacing_file(Path(sys.argv[1])) as file: file.write(bytes(5000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "file")], capture_output=True, text=True
    )
    assert "UsageError: `path` must be a place that can be written" in done.stderr
    assert "File too large" in done.stderr
    assert content(tmp_path) == before


def test_a_message_names_place_reason_and_argument(tmp_path: Path) -> None:
    path = tmp_path / "no" / "file"
    with (
        pytest.raises(PackageError) as caught,
        replacing_file(path, "--out", error=PackageError),
    ):
        pytest.fail("the block was entered")
    assert str(caught.value) == (
        f"`--out` must be a place that can be written, got {str(path)!r}: "
        "No such file or directory."
    )
    assert caught.value.__cause__ is None


@POSIX
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):
        # Permissions do not bind the superuser; nobody may make files here.
        folder = Path("/proc/self")
        if not folder.is_dir():
            pytest.skip("no folder that is read-only to the superuser")
    with pytest.raises(UsageError, match="a place that can be written"):
        write(folder / "file", b"new")
    assert not (folder / "file").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
@POSIX
def test_what_is_no_file_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    found = path.lstat()
    with pytest.raises(UsageError, match=r"Is a directory|no regular file"):
        write(path, b"new")
    assert os.listdir(tmp_path) == [kind]
    assert path.lstat().st_ino == found.st_ino


@POSIX
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").write_bytes(b"old")
    for name, target in (("link", "there/file"), ("dangling", "there/new")):
        (tmp_path / name).symlink_to(target)
        write(tmp_path / name, name.encode())
        assert os.readlink(tmp_path / name) == target
    assert content(there) == {"file": b"link", "new": b"dangling"}
    assert sorted(os.listdir(tmp_path)) == ["dangling", "link", "there"]


@POSIX
def test_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    mask = os.umask(0o027)
    try:
        write(path, b"")
        assert mode(path) == 0o640
        with replacing_file(tmp_path / "private", mode=0o600):
            pass
        assert mode(tmp_path / "private") == 0o600
        path.chmod(0o604)
        with replacing_file(path):
            (new,) = (entry for entry in tmp_path.iterdir() if entry.name.startswith("."))
            assert mode(new) == 0o600
        assert mode(path) == 0o604
    finally:
        os.umask(mask)


@POSIX
def test_what_a_killed_writer_leaves_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    children = []
    try:
        for killed in (True, False):
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE
            )
            children.append(child)
            assert child.stdout is not None
            assert child.stdout.readline() == b"half\n"
            if killed:
                child.send_signal(signal.SIGKILL)
                child.wait()
        assert path.read_bytes() == b"old"
        write(path, b"1")
        assert len(os.listdir(tmp_path)) == 3, "they are too young to tell"
        monkeypatch.setattr(atomic_file, "_YOUNG_SECONDS", 0.0)
        write(path, b"2")
        assert len(os.listdir(tmp_path)) == 2, "one of a live process"
    finally:
        for child in children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
    write(path, b"3")
    assert content(tmp_path) == {"file": b"3"}


# Who writes files --------------------------------------------------------------------------------


def test_arrays_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = np.tri(3, dtype=np.bool_)

    def write_both() -> list[str]:
        messages = []
        for name in ("arrays.npz", "picture.png"):
            try:
                if name == "arrays.npz":
                    write_arrays(tmp_path / name, {"file": seen})
                else:
                    draw_visibility(seen, tmp_path / name)
            except UsageError as error:
                messages.append(str(error))
        return messages

    assert write_both() == []
    before = content(tmp_path)
    assert sorted(before) == ["arrays.npz", "picture.png"]
    assert (read_arrays([str(tmp_path / "arrays.npz")])["file"] == seen).all()

    def fail(_: Any) -> None:
        raise NO_SPACE

    monkeypatch.setattr(os, "fsync", fail)
    seen = ~seen
    messages = write_both()
    assert len(messages) == 2
    assert all("No space left on device" in message for message in messages)
    assert messages[0].startswith("`--out`")
    assert content(tmp_path) == before
