"""Which position each row of an output is of, where its rows are not simply the tokens.

Outputs may flatten batch and tokens into one axis, or tokens and features; drop the last token, or
keep every second one. How many rows there are at each length says which position a row is of: one
that is there from ``n`` tokens on is the work of the first ``n``, so that no later one may reach
it. Where every token has as many rows as the others, they may lie in several orders, and one of
them must be causal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from causal_attn.verify.influence.calls import Sizes

__all__ = ["Rows", "rows_that_grow"]

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an output along one axis.

    Attributes:
        axis: The first axis that grows with the tokens.
        counts: How many rows there are, for ``(tokens, past)`` of some calls.
    """

    axis: int
    counts: Mapping[Sizes, int]

    def last_positions(self, count: int, tokens: int, past: int) -> list[Positions]:
        """For each order that the rows may have, the last position that may reach each row.

        Empty where nothing is known of calls of this size.

        Args:
            count: Rows in the call.
            tokens: New tokens of the call.
            past: Rows of the past before them.
        """
        row = np.arange(count)
        if self._each(lambda new, _: new) and count % tokens == 0:
            return [past + (row // inner) % tokens for inner in _divisors(count // tokens)]
        total = tokens + past
        if self._each(lambda new, old: new + old) and count % total == 0:
            return [(row // inner) % total for inner in _divisors(count // total)]
        return [first for first in (self._grown(count, tokens, past),) if first is not None]

    def _each(self, size: Callable[[int, int], int]) -> bool:
        """Whether there are as many rows as `size` says of a call, or a multiple of them."""
        multiples = {divmod(count, size(*call)) for call, count in self.counts.items()}
        return len(multiples) == 1 and not next(iter(multiples))[1]

    def _grown(self, count: int, tokens: int, past: int) -> Positions | None:
        least = min(old for _, old in self.counts)
        if self.counts.get((tokens, least)) == count:
            before = past
        elif self.counts.get((tokens + past - least, least)) == count:
            before = least
        else:
            return None
        lengths = sorted((new, rows) for (new, old), rows in self.counts.items() if old == least)
        first = np.zeros(count, np.int64)
        for new, rows in reversed(lengths):
            first[:rows] = new
        return before + first - 1


def _divisors(number: int) -> list[int]:
    """From the largest on: rows of one token mostly lie side by side."""
    return [part for part in range(number, 0, -1) if number % part == 0]


def rows_that_grow(shapes: Mapping[Sizes, tuple[int, ...]]) -> Rows | None:
    """The rows of an output by its shapes in some calls; ``None`` where it grows nowhere."""
    ranks = {len(shape) for shape in shapes.values()}
    if len(ranks) != 1:
        return None
    least = min(past for _, past in shapes)
    for axis in range(ranks.pop()):
        if len({shape[axis] for (_, past), shape in shapes.items() if past == least}) > 1:
            return Rows(axis, {call: shape[axis] for call, shape in shapes.items()})
    return None
