"""What rounding the weights changes in the results: a statement, not a judgement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.certificate import Check
from causal_attn.runtime import Session
from causal_attn.verify.feeds.feeder import Feeder

__all__ = ["NAME", "check_against_source"]

NAME = "error of quantized weights"


class _Sums:
    """Errors of one output, over calls."""

    def __init__(self) -> None:
        self.most = self.total = self.squares = self.size = 0.0
        self.count = self.rows = self.same = 0

    def add(self, found: NDArray[Any], source: NDArray[Any], chosen: bool) -> None:
        errors = np.abs(found.astype(np.float64) - source.astype(np.float64))
        self.most = max(self.most, float(errors.max(initial=0)))
        self.total += float(errors.sum())
        self.squares += float((errors**2).sum())
        self.size += float((source.astype(np.float64) ** 2).sum())
        self.count += errors.size
        if chosen:
            same = found.argmax(axis=-1) == source.argmax(axis=-1)
            self.rows += same.size
            self.same += int(same.sum())

    def figures(self) -> dict[str, float]:
        """JSON values."""
        root = (self.squares / self.size) ** 0.5 if self.size else 0.0
        mean = self.total / self.count if self.count else 0.0
        found = {"max_abs": self.most, "mean_abs": mean, "relative": root}
        return found | ({"top_1": self.same / self.rows} if self.rows else {})


def check_against_source(
    quantized: Session, source: Session, feeder: Feeder, lengths: Sequence[int]
) -> Check:
    """Run fresh inputs through both, at each of `lengths` tokens and without a past.

    A past that is drawn at random holds keys that no model writes, and its errors are of nothing.

    Figures by output: the largest and the mean absolute error, and ``relative``, the error's root
    mean square in parts of that of the source; of an output called ``logits`` also ``top_1``, the
    share of rows whose largest value is at the same place. It fails where one of the two gives
    what is not finite and the other does not.
    """
    rng = np.random.default_rng([*NAME.encode()])
    sums: dict[str, _Sums] = defaultdict(_Sums)
    provider = str(quantized.provider)
    for sizes in feeder.cases(lengths):
        feeds = feeder.make({**sizes, **dict.fromkeys(sizes.keys() & {"past_tokens"}, 0)}, rng)
        found, wanted = quantized.run(feeds), source.run(feeds)
        for name, values in wanted.items():
            if values.dtype.kind != "f":
                continue
            if not np.array_equal(np.isfinite(values), np.isfinite(found[name])):
                detail = f"`{name}` is finite in other places than that of the source"
                return Check(name=NAME, passed=False, detail=detail, provider=provider)
            inside = np.isfinite(values)
            chosen = name == "logits" and bool(inside.all())
            sums[name].add(
                found[name] if chosen else found[name][inside],
                values if chosen else values[inside],
                chosen,
            )
    figures = {name: one.figures() for name, one in sums.items()}
    shown = "logits" if "logits" in figures else max(figures, key=lambda n: figures[n]["relative"])
    worst = figures[shown]
    detail = (
        f"`{shown}` is off from that of the weights before by at most {worst['max_abs']:.2g}, "
        f"{worst['mean_abs']:.2g} on average, {worst['relative']:.1%} of its root mean square"
    )
    if "top_1" in worst:
        detail += f"; the largest logit is the same in {worst['top_1']:.0%} of rows"
    return Check(name=NAME, passed=True, detail=detail, figures=figures, provider=provider)
