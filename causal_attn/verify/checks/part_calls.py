"""One sequence of tokens, and calls that take part of it, each behind the cache of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.cache_layout import CacheEntry, EntryKind
from causal_attn.package.contract import TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.runtime import Session
from causal_attn.verify.feeds.feeder import Feeder, Feeds, Sizes
from causal_attn.verify.interface.naming import (
    PAST,
    Dims,
    belongs_to_cache,
    is_encoders,
    pair_some,
)

__all__ = ["PartCalls"]

Rows = dict[str, NDArray[Any]]


class PartCalls:
    """Calls that take tokens of one sequence, by a graph whose dims are ours.

    Args:
        session: Runs them.
        feeder: Of the graph; its cache, if it has one, is handed on.
        sizes: Of the whole sequence.
        rng: Draws it.
    """

    def __init__(
        self, session: Session, feeder: Feeder, sizes: Sizes, rng: np.random.Generator
    ) -> None:
        self.session, self.feeder = session, feeder
        self.sizes = {**sizes, PAST: 0}
        self.feeds = feeder.make(self.sizes, rng)
        layout = feeder.contract.cache
        self.entries = {} if layout is None else {e.input: e for e in layout.entries if e.output}
        self.kept = _kept(feeder)

    def run(self, steps: Sequence[int]) -> list[Rows]:
        """Results of calls of `steps` tokens that hand the cache on, in their order."""
        results: list[Rows] = []
        done = 0
        for step in steps:
            results.append(self._call(done, step, results))
            done += step
        return results

    def _call(self, start: int, step: int, earlier: Sequence[Rows]) -> Rows:
        feeder = self.feeder
        before = earlier[-1] if earlier else None
        sizes = {**self.sizes, feeder.contract.tokens: step, PAST: start}
        feeds: Feeds = {}
        for tensor in feeder.contract.inputs:
            shape = feeder.shape(tensor, sizes)
            entry = self.entries.get(tensor.name)
            if tensor.name in feeder.fixed:
                feeds[tensor.name] = feeder.fixed[tensor.name](shape, sizes).astype(tensor.dtype)
            elif earlier and (found := self._of_the_first(tensor, earlier[0])) is not None:
                feeds[tensor.name] = found
            elif entry is None:
                feeds[tensor.name] = self._part(tensor, start, step)
            elif before is None:
                feeds[tensor.name] = self._empty(entry, tensor, shape)
            else:
                feeds[tensor.name] = before[str(entry.output)]
        return self.session.run(feeds)

    def _of_the_first(self, tensor: TensorContract, first: Rows) -> NDArray[Any] | None:
        """What the first call made of an encoder, if it did."""
        output = self.kept.get(tensor.name)
        return first[output] if output is not None and first[output].size else None

    def _part(self, tensor: TensorContract, start: int, step: int) -> NDArray[Any]:
        """Of the new tokens their own; along axes of past and new tokens all so far."""
        array = self.feeds[tensor.name]
        for axis in self.feeder.token_axes(tensor):
            total = DimExpression.parse(str(tensor.dims[axis])).factor(PAST) == 1
            array = np.take(array, range(0 if total else start, start + step), axis)
        return array

    def _empty(
        self, entry: CacheEntry, tensor: TensorContract, shape: tuple[int, ...]
    ) -> NDArray[Any]:
        """A cache without tokens; of a buffer the garbage that the feeder put there."""
        if entry.kind is EntryKind.FIXED:
            return self.feeds[tensor.name]
        return np.zeros(shape, tensor.dtype)

    def rows(self, results: Sequence[Mapping[str, NDArray[Any]]], *, caches: bool = False) -> Rows:
        """Rows of the outputs with a token axis, one call after the other, rows first.

        Of weights, whose keys differ in number, there are none after several calls.

        Args:
            results: Of calls that follow one another.
            caches: Whether to take outputs that continue the cache too: of one call, since each
                holds all rows so far.
        """
        continued = set() if caches else {entry.output for entry in self.entries.values()}
        rows = {}
        for tensor in self.feeder.watched():
            axes = list(self.feeder.token_axes(tensor))
            if tensor.name in continued or (len(axes) > 1 and len(results) > 1):
                continue
            parts = [np.moveaxis(result[tensor.name], axes[0], 0) for result in results]
            rows[tensor.name] = np.concatenate(parts)
        return rows


def _kept(feeder: Feeder) -> dict[str, str]:
    """Keys and values of an encoder, and the outputs of the first call that hold them."""
    encoders = [
        tensor.name
        for tensor in feeder.contract.inputs
        if belongs_to_cache(tensor.name) and is_encoders(tensor.name, tensor.dims)
    ]
    outputs: dict[str, Dims] = {t.name: list(t.dims) for t in feeder.contract.outputs}
    return dict(pair_some(encoders, outputs))
