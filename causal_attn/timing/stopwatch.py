"""Time a model in a process of its own: ``python -m causal_attn.timing.stopwatch model.onnx cpu``.

Two thread pools in one process spoil each other's figures, since threads that wait spin. So each
model that is compared gets a process with nothing but ONNX Runtime in it, and they take turns.

One request a line on stdin, ``{"sizes": {"tokens": 64, …}, "seconds": 0.05}``; one reply a line on
stdout: ``{"ms": 0.1}``, the milliseconds of the fastest call within that time, or
``{"error": "…"}`` where the model does not run at these sizes. The first request at new sizes
makes the inputs and warms up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from causal_attn.errors import CausalAttnError, EngineError

__all__ = ["Stopwatch"]


class Stopwatch:
    """A process that times one model; close it, or use it in a ``with`` statement.

    Args:
        model: An ``.onnx`` file with its contract inside.
        provider: Short name.
    """

    def __init__(self, model: Path, provider: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "causal_attn.timing.stopwatch", str(model), provider],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fastest_ms(self, sizes: Mapping[str, int], seconds: float) -> float:
        """Milliseconds of the fastest call at `sizes`; calls go on for `seconds`, at least one.

        Raises:
            EngineError: The model does not run at `sizes`, or the process ended; the message holds
                its last words.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"sizes": sizes, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        reply = self._process.stdout.readline()
        if not reply:
            _, words = self._process.communicate()
            last = (words.strip().splitlines() or ["nothing"])[-1]
            raise EngineError(f"The process that times a model must answer, got: {last}")
        answer = json.loads(reply)
        if "error" in answer:
            raise EngineError(answer["error"])
        return float(answer["ms"])

    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process. A second call does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _serve(model: str, provider: str) -> None:
    import numpy as np

    from causal_attn.runtime import load
    from causal_attn.verify.feeds.feeder import Feeder

    def answer(values: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    made: dict[str, Any] = {}
    with load(model, provider, accept="unverified") as session:
        for line in sys.stdin:
            request = json.loads(line)
            sizes, seconds = request["sizes"], request["seconds"]
            if made.get("sizes") != sizes:
                feeds = Feeder(contract=session.contract).make(sizes, np.random.default_rng(0))
                try:
                    session.run(feeds)
                except CausalAttnError as error:
                    answer({"error": str(error)})
                    continue
                made = {"sizes": sizes, "feeds": feeds}
            fastest, end = float("inf"), time.perf_counter() + seconds
            while True:
                start = time.perf_counter()
                session.run(made["feeds"])
                now = time.perf_counter()
                fastest = min(fastest, now - start)
                if now >= end:
                    break
            answer({"ms": fastest * 1e3})


if __name__ == "__main__":
    _serve(*sys.argv[1:])
