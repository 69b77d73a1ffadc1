"""What the influence proof found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence.calls import in_words
from causal_attn.verify.influence.crossed import Crossed

__all__ = ["Leak", "Proof"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """A position of the future that reaches a row of an output.

    Attributes:
        output: Name of the graph output.
        query: Position of the row that is reached.
        position: Position it is reached by; later than `query`.
        tokens: New tokens of the call in which it is seen.
        past: Rows of the past in that call.
        of: What the numbers count: a position, or a sequence of a batch.
        path: The way from the input to the output: the input element, then one entry for each
            node, ``operator 'name' -> tensor[element]``.
        crossing: Which entry of `path` takes the position to a row that is not its own, such as a
            softmax, a product or a shift; ``None`` where it is not seen.
        layer: Where that node stands, such as ``layer 3, Softmax 4 of 12``.
        crossed: The mask that it was given, in the largest call of at most `MOST_DRAWN` positions
            that leaks there; ``None`` where it has none.
        assumed: Nodes on the path that were read for the worst of several ways, such as a
            condition that is data: the path may not be there. Without one it is.
    """

    output: str
    query: int
    position: int
    tokens: int
    past: int
    path: tuple[str, ...]
    crossing: int | None = None
    layer: str = ""
    crossed: Crossed | None = None
    assumed: tuple[str, ...] = ()
    of: str = "position"

    @property
    def crossed_at(self) -> str:
        """The node in which the position is crossed, ``operator 'name'``; empty: not seen."""
        return "" if self.crossing is None else self.path[self.crossing].rpartition(" -> ")[0]

    def __str__(self) -> str:
        """One sentence."""
        layer = f" ({self.layer})" if self.layer else ""
        crossed = f", crossed at {self.crossed_at}{layer}" if self.crossed_at else ""
        return (
            f"{self.of} {self.position} reaches {self.of} {self.query} of {self.output!r} "
            f"({self.tokens} tokens, {self.past} past){crossed}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The verdict on a graph and the reasons for it.

    The verdict is about finite data: NaN or infinity in a hidden value passes a weight of zero.

    Attributes:
        verdict: Of all calls examined together.
        outputs: For each output, which row is reached by which position, in the largest call
            that was asked for, or in one that leaks: ``bool [rows, past + tokens]``. Where the
            verdict is conditional, as the condition has it.
        calls: ``(tokens, past)`` of every call examined.
        left: Calls that were to be examined and that no time was left for.
        leak: With ``not causal``: the first pair and its path.
        undecided: With ``undecided``: what could not be followed and changes the verdict, such as
            ``Mystery 'node_7': no rule for this operator``.
        score_bound: The graph is causal while the scores at every softmax, less the constants
            that masks add, stay below this in magnitude; ``None``: whatever they are.
        largest_score: With ``causal`` and a bound: no score is larger, by the weights alone. A
            past is taken to be one that the graph itself wrote.
        every_length: The verdict holds at every length and past that the graph runs at, and not
            only at those in `calls`.
        other_lengths: Why that is not known; empty where it is not asked.
        conditions: The graph is causal while these hold of inputs whose values were fixed, such as
            ``token_type_ids are 0``; none where it is whatever they are.
        length_at: Nodes in which numbers that differ with the length meet data, so that rows may
            differ from those of a shorter input: no fault of causality.
        notes: Facts that are no faults, such as an output that never sees the past.
    """

    verdict: Verdict
    outputs: Mapping[str, NDArray[np.bool_]]
    calls: tuple[tuple[int, int], ...]
    left: tuple[tuple[int, int], ...] = ()
    leak: Leak | None = None
    undecided: tuple[str, ...] = ()
    score_bound: float | None = None
    largest_score: float | None = None
    every_length: bool = False
    other_lengths: str = ""
    conditions: tuple[str, ...] = ()
    length_at: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of new tokens that were examined, in ascending order."""
        return tuple(sorted({tokens for tokens, _ in self.calls}))

    def __str__(self) -> str:
        """One sentence with the verdict and its reason."""
        if self.verdict is Verdict.OF_ALL_TOKENS:
            about = "; ".join(self.notes)
            return f"no output has a token axis, so that nothing is claimed of rows; {about}"
        if self.leak is not None:
            return f"{self.verdict}: {self.leak}"
        if self.undecided:
            return f"{self.verdict} because of {'; '.join(self.undecided)}"
        if self.largest_score is not None:
            reason = (
                f": |score| <= {self.largest_score:.6g}, and masks hide while it is below "
                f"{self.score_bound:.6g}"
            )
        elif self.score_bound is not None:
            reason = f": while |score| < {self.score_bound:.6g}"
        else:
            reason = ""
        if self.conditions:
            reason += f": while {' and '.join(self.conditions)}"
        left = f"; time was up before {len(self.left)} more sizes" if self.left else ""
        every = ", and for every length" if self.every_length else ""
        if self.other_lengths:
            reason += f"; other lengths are open: {self.other_lengths}"
        return f"{self.verdict} {in_words(self.calls)}{every}{left}{reason}"
