"""The role of a worker that times one model, with nothing but ONNX Runtime in its process.

::

    {"do": "prepare", "sizes": {"tokens": 64, …}}  -> {}
    {"do": "turn", "seconds": 0.02}                -> {"seconds": 0.0001}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from causal_attn.machine.provider import Provider
from causal_attn.runtime import load
from causal_attn.timing.process import Worker
from causal_attn.timing.turn import measure_turn
from causal_attn.verify.feeds.feeder import Feeder

__all__ = ["ModelServer", "model_worker"]


def model_worker(model: Path, provider: Provider) -> Worker:
    """A worker that times `model`, an ``.onnx`` file with its contract inside.

    Its first request raises EngineError where the model cannot be loaded.
    """
    return Worker(f"{__name__}:{ModelServer.__name__}", str(model), provider)


class ModelServer:
    """Times the model at the path `name`.

    Raises:
        CausalAttnError: It cannot be loaded, which ends the process.
    """

    def __init__(self, name: str, provider: Provider) -> None:
        self._session = load(name, provider, accept="unverified")

    def do_prepare(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Make the inputs at `sizes`, and run them once: an error says that they do not run."""
        feeds = Feeder(contract=self._session.contract).make(sizes, np.random.default_rng(0))
        self._session.run(feeds)
        self._feeds = feeds
        return {}

    def do_turn(self, seconds: float) -> dict[str, Any]:
        """Seconds of the fastest call, out of a turn of about `seconds`."""
        samples = measure_turn(
            lambda: self._session.run(self._feeds), lambda: None, seconds, grouped=False
        )
        return {"seconds": min(samples)}
