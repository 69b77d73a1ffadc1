"""What a killed process leaves beside a package is removed, and what a live one has is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from causal_attn import atomic_file
from causal_attn.package.replace import replacing_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

CHILD = """
import sys, time
from pathlib import Path
from causal_attn.package.replace import replacing_folder
with replacing_folder(Path(sys.argv[1]), lambda _: True) as new:
    (new / "model.onnx").write_bytes(bytes(1000))
    print(new.name, flush=True)
    time.sleep(60)
"""


def staged(path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process in the middle of writing a package to `path`, and its new folder."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, path.with_name(child.stdout.readline().strip())


def write(path: Path) -> None:
    with replacing_folder(path, lambda _: True) as new:
        (new / "done").write_text("new")


def test_only_what_the_dead_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "package"
    dead, left = staged(path)
    other, elsewhere = staged(tmp_path / "other")
    live, kept = staged(path)
    try:
        for child in (dead, other):
            child.send_signal(signal.SIGKILL)
            child.wait()
        write(path)
        assert left.exists(), "it is too young to tell"
        monkeypatch.setattr(atomic_file, "_YOUNG_SECONDS", 0.0)
        write(path)
        assert not left.exists()
        assert (kept / "model.onnx").stat().st_size == 1000
        assert elsewhere.exists()
        assert (path / "done").read_text() == "new"
    finally:
        for child in (dead, other, live):
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
    write(path)
    assert sorted(os.listdir(tmp_path)) == sorted([elsewhere.name, "package"])


def test_names_that_only_look_alike_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "_YOUNG_SECONDS", 0.0)
    names = [".p.0123456.tmp", ".p.01234567.old", ".px01234567.tmp", "p.01234567.tmp", ".p.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "away").mkdir()
    (tmp_path / ".p.01234567.tmp").symlink_to("away")
    write(tmp_path / "p")
    assert sorted(os.listdir(tmp_path)) == sorted([*names, ".p.01234567.tmp", "away", "p"])
