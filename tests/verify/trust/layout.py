"""Inputs of a decoder in the ecosystem's layout, made without the verifier's feeder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

__all__ = ["Arrays", "Layout", "Runner"]

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What goes in and comes out, besides ``input_ids`` and ``logits``.

    Attributes:
        vocabulary: Ids are below it.
        mask: It takes ``attention_mask [batch, past + tokens]``.
        positions: It takes ``position_ids [batch, tokens]``.
        pads: On which sides of a sequence padding must not be seen.
        cache: Past input -> the output that continues it; axis 2 is the tokens.
        heads: Heads of each key and value.
        features: Features of each.
        rows: More outputs, whose rows on axis 0 or 1 are the tokens: name -> axis; on axis 0 they
            are ``batch * tokens`` many, or fewer.
    """

    vocabulary: int
    mask: bool = False
    positions: bool = False
    pads: tuple[str, ...] = ()
    cache: dict[str, str] = field(default_factory=dict)
    heads: int = 0
    features: int = 0
    rows: dict[str, int] = field(default_factory=dict)


class Runner:
    """A graph on ONNX Runtime, one thread, as it is: no optimizer changes it."""

    def __init__(self, path: str, layout: Layout) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.layout = layout
        self.types = {i.name: i.type for i in self.session.get_inputs()}
        self.outputs = [output.name for output in self.session.get_outputs()]

    @property
    def half(self) -> bool:
        return any("float16" in i.type for i in self.session.get_inputs()) or any(
            "float16" in o.type for o in self.session.get_outputs()
        )

    def past(self, batch: int, tokens: int, rng: np.random.Generator) -> Arrays:
        """A past that nobody computed: standard normal."""
        shape = (batch, self.layout.heads, tokens, self.layout.features)
        return {
            name: rng.standard_normal(shape).astype(self._dtype(name))
            for name in self.layout.cache
        }

    def __call__(
        self,
        ids: NDArray[np.int64],
        past: Arrays | None = None,
        mask: NDArray[np.int64] | None = None,
    ) -> Arrays:
        """Run it; positions count what the mask shows."""
        layout = self.layout
        batch, tokens = ids.shape
        feeds: Arrays = {"input_ids": ids}
        held = 0
        if layout.cache:
            past = self.past(batch, 0, np.random.default_rng(0)) if past is None else past
            held = next(iter(past.values())).shape[2]
            feeds |= past
        seen = np.ones((batch, held + tokens), np.int64) if mask is None else mask
        if layout.mask:
            feeds["attention_mask"] = seen
        if layout.positions:
            feeds["position_ids"] = np.maximum(np.cumsum(seen, 1) - 1, 0)[:, held:]
        feeds = {
            name: array.astype(np.int32) if self.types.get(name) == "tensor(int32)" else array
            for name, array in feeds.items()
            if name in self.types
        }
        results: Any = self.session.run(self.outputs, feeds)
        return dict(zip(self.outputs, results, strict=True))

    def handed_on(self, results: Arrays) -> Arrays:
        return {name: results[output] for name, output in self.layout.cache.items()}

    def _dtype(self, name: str) -> type:
        return np.float16 if "float16" in self.types.get(name, "") else np.float32
