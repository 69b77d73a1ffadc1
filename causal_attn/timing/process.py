"""The caller's end of a worker: start it, ask it, and keep it still while others are measured.

Threads of a pool that wait for work spin for a while, in ONNX Runtime and in OpenMP alike. Two
pools in one process, or two processes awake at once, take the cores from each other, and the
figures of both are wrong. Turning the spinning off would change what is measured. So each system
has a process of its own, and a process whose turn it is not is stopped (SIGSTOP): none of its
threads runs, spinning or not. It is kept, not started anew, because starting costs seconds and a
first call in a fresh process is not what a service sees. The warm-up of a turn wakes its threads.

Each worker is a process group of its own: if the caller dies, the kernel sends SIGHUP and SIGCONT
to the stopped groups that it leaves behind (POSIX, orphaned process groups), and they end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from causal_attn import errors
from causal_attn.errors import CausalAttnError, EngineError
from causal_attn.machine.provider import Provider

__all__ = ["Worker", "WorkerFailed"]

_CAN_STOP = hasattr(signal, "SIGSTOP")
_SETTLE_SECONDS = 0.5
"""Without SIGSTOP (Windows): longer than any pool spins by default."""


class WorkerFailed(EngineError):
    """A worker could not do what it was asked; it still runs. The message is the system's."""


class Worker:
    """A process that answers the requests of one role; stopped between them.

    Args:
        role: What answers in the process, as `causal_attn.timing.worker` finds it, such as
            ``causal_attn.bench.worker:serve``.
        name: What the role is to serve: a system, or the path of a model.
        provider: What it runs on.

    A context manager; its end kills the process.
    """

    def __init__(self, role: str, name: str, provider: Provider) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        root = str(Path(__file__).parents[2])
        inherited = os.environ.get("PYTHONPATH")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "causal_attn.timing.worker", role, name, str(provider)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, inherited)))},
            process_group=0 if _CAN_STOP else None,
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The answer to one request; the process runs only meanwhile.

        Raises:
            WorkerFailed: The system failed, with its words.
            CausalAttnError: The system raised one of ours; it is raised again here.
            EngineError: The process ended.
        """
        assert self._process.stdin is not None  # opened as pipes
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            self._signal("SIGCONT")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(
                f"The process of {self.name} must answer {do!r}, but it ended with "
                f"{self._process.wait()}: {self._last_words()}"
            )
        self._halt()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            ours = getattr(errors, answer["kind"], None)
            if isinstance(ours, type) and issubclass(ours, CausalAttnError):
                raise ours(answer["error"])
            raise WorkerFailed(f"{answer['kind']}: {answer['error'].splitlines()[0]}")
        return answer

    def close(self) -> None:
        """End the process; a second call does nothing."""
        # SIGKILL reaches stopped processes too.
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _signal(self, name: str) -> None:
        if _CAN_STOP:
            self._process.send_signal(getattr(signal, name))

    def _halt(self) -> None:
        """Return when none of its threads runs."""
        if not _CAN_STOP:
            time.sleep(_SETTLE_SECONDS)
            return
        self._signal("SIGSTOP")
        if self._process.returncode is None:
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                # It ended instead, and this was the one chance to learn how.
                self._process.returncode = os.waitstatus_to_exitcode(status)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
