"""A worker runs while it is asked and at no other time, and ends with its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from causal_attn.errors import EngineError, InputError
from causal_attn.machine.provider import Provider
from causal_attn.package import read_package
from causal_attn.timing.model import model_worker
from causal_attn.timing.process import Worker, WorkerFailed

ROOT = Path(__file__).parents[2]
MODEL = read_package(ROOT / "models" / "causal_attention").variants[0].model
SIZES = {"batch": 1, "heads": 2, "features": 8, "tokens": 4}
needs_stopping = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc"
)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with model_worker(MODEL, Provider.CPU) as started:
        yield started


@needs_stopping
def test_a_worker_is_still_between_its_turns_and_never_sees_torch(worker: Worker) -> None:
    with worker:
        worker.ask("prepare", sizes=SIZES)
        assert _state(worker.pid) == "T"
        assert worker.ask("turn", seconds=0.01)["seconds"] > 0
        assert _state(worker.pid) == "T"
        assert "libtorch" not in Path(f"/proc/{worker.pid}/maps").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


@needs_stopping
def test_workers_end_when_their_caller_is_killed() -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from causal_attn.timing.model import model_worker\n"
        "worker = model_worker(Path(sys.argv[1]), 'cpu')\n"
        f"worker.ask('prepare', sizes={SIZES})\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    caller = subprocess.run(
        [sys.executable, "-c", code, str(MODEL)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert caller.returncode == -signal.SIGKILL
    pid = int(caller.stdout)
    deadline = time.monotonic() + 10
    while _state(pid) not in (None, "Z", "X"):
        assert time.monotonic() < deadline, f"worker {pid} is still there"
        time.sleep(0.02)


def test_what_a_worker_cannot_do_comes_back_as_an_error(worker: Worker) -> None:
    with pytest.raises(InputError):
        worker.ask("prepare", sizes=SIZES | {"tokens": 0})
    with pytest.raises(WorkerFailed, match="AttributeError"):
        worker.ask("nothing")
    worker.ask("prepare", sizes=SIZES)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="it ended with -9"):
        worker.ask("turn", seconds=0.01)
    assert not worker.runs()


def test_sizes_that_do_not_run_leave_those_before_in_place(worker: Worker) -> None:
    worker.ask("prepare", sizes=SIZES)
    with pytest.raises(InputError):
        worker.ask("prepare", sizes=SIZES | {"tokens": 0})
    assert worker.ask("turn", seconds=0.001)["seconds"] > 0


def test_a_role_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    with (
        model_worker(tmp_path / "absent.onnx", Provider.CPU) as worker,
        pytest.raises(EngineError, match=r"must answer 'turn', but it ended with 1: .*absent"),
    ):
        worker.ask("turn", seconds=0.01)
    with (
        Worker("causal_attn.timing.model:Nobody", "x", Provider.CPU) as worker,
        pytest.raises(EngineError, match="Nobody"),
    ):
        worker.ask("turn")


def _state(pid: int) -> str | None:
    """The state letter of a process; ``None`` if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None
