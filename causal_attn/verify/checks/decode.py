"""Decode equivalence: one graph must say the same however the tokens are handed to it.

The whole sequence at once, token by token, and in chunks, each call continuing the cache of the
one before. The rows must agree within twice the rounding that the graph itself shows when the same
rows are computed at other lengths (kernels sum in other orders at other shapes), plus a band of 16
units in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.cache_layout import CacheEntry, EntryKind
from causal_attn.package.certificate import Check
from causal_attn.package.contract import TensorContract
from causal_attn.runtime import Session
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.rounding import largest_difference, rounding_budget
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.interface.naming import PAST, TOKENS

if TYPE_CHECKING:
    from causal_attn.verify.interface.discover import Interface

__all__ = ["check_decode"]

_NAME = "decode is equivalent"
_LENGTH = 11


def check_decode(trial: Trial) -> Check | None:
    """Run one sequence whole, token by token and in chunks; ``None`` for a graph with no cache."""
    interface = trial.interface
    if interface is None or not interface.cache or TOKENS in interface.feeder.pinned:
        return None
    runner = _Decoder(trial.session, interface, trial.rng(_NAME))
    if not runner.rows:
        return None
    ways = {"token by token": (1,) * _LENGTH, "in chunks": (4, 1, 3, 3)}
    figures: dict[str, Any] = {}
    try:
        whole = runner.run((_LENGTH,))
        noise = max(
            largest_difference(runner.prefix(length), whole) for length in (1, 3, _LENGTH - 1)
        )
        budget = rounding_budget(noise, whole)
        for way, steps in ways.items():
            error = largest_difference(runner.run(steps), whole)
            figures[way] = {"max_abs": error, "budget": budget}
            if not error <= budget:
                detail = f"{way} is off by {error:.3g} from the whole, budget {budget:.3g}"
                return trial.result(_NAME, False, detail, **figures)
    except CausalAttnError as error:
        return trial.result(_NAME, False, f"does not decode {_LENGTH} tokens: {error}")
    worst = max(figure["max_abs"] for figure in figures.values())
    detail = f"whole, {' and '.join(ways)} agree within {worst:.2g}, budget {budget:.2g}"
    return trial.result(_NAME, True, detail, **figures)


class _Decoder:
    def __init__(self, session: Session, interface: Interface, rng: np.random.Generator) -> None:
        self.session, self.interface = session, interface
        (sizes,) = interface.feeder.cases((_LENGTH,))
        self.sizes = {**sizes, PAST: 0}
        self.feeds = interface.feeder.make(self.sizes, rng)
        layout = interface.feeder.contract.cache
        self.entries = {} if layout is None else {e.input: e for e in layout.entries if e.output}
        present = {entry.output for entry in self.entries.values()}
        self.rows = {name: axis for name, axis in interface.outputs.items() if name not in present}

    def prefix(self, length: int) -> dict[str, NDArray[Any]]:
        """The first rows, computed without the others."""
        return self._collect([self._call(0, length, None)])

    def run(self, steps: Sequence[int]) -> dict[str, NDArray[Any]]:
        """All rows, in calls of `steps` tokens that hand the cache on."""
        results: list[dict[str, NDArray[Any]]] = []
        done = 0
        for step in steps:
            results.append(self._call(done, step, results[-1] if results else None))
            done += step
        return self._collect(results)

    def _call(
        self, start: int, step: int, before: dict[str, NDArray[Any]] | None
    ) -> dict[str, NDArray[Any]]:
        feeder = self.interface.feeder
        sizes = {**self.sizes, TOKENS: step, PAST: start}
        feeds: Feeds = {}
        for tensor in feeder.contract.inputs:
            shape = feeder.shape(tensor, sizes)
            if tensor.name in feeder.fixed:
                feeds[tensor.name] = feeder.fixed[tensor.name](shape, sizes).astype(tensor.dtype)
            elif (entry := self.entries.get(tensor.name)) is not None:
                feeds[tensor.name] = (
                    before[str(entry.output)]
                    if before is not None
                    else self._empty(entry, tensor, shape)
                )
            else:
                array = self.feeds[tensor.name]
                for axis in feeder.token_axes(tensor):
                    array = np.take(array, range(start, start + step), axis)
                feeds[tensor.name] = array
        return self.session.run(feeds)

    def _empty(
        self, entry: CacheEntry, tensor: TensorContract, shape: tuple[int, ...]
    ) -> NDArray[Any]:
        """A cache without tokens; of a buffer the garbage that the feeder put there."""
        if entry.kind is EntryKind.FIXED:
            return self.feeds[tensor.name]
        return np.zeros(shape, tensor.dtype)

    def _collect(self, results: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Rows of every output along axis 0, but weights, whose keys differ in number."""
        keyed = {
            tensor.name
            for tensor in self.interface.feeder.contract.outputs
            if len(list(self.interface.feeder.token_axes(tensor))) > 1
        }
        return {
            name: np.concatenate([np.moveaxis(result[name], axis, 0) for result in results])
            for name, axis in self.rows.items()
            if name not in keyed
        }
