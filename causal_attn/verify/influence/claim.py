"""What is to be proved of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from causal_attn.verify.influence.feed import Axes, Known

__all__ = ["LENGTHS", "SECONDS", "Claim"]

LENGTHS = (1, 2, 3, 5, 8, 33)
"""Lengths examined unless told otherwise: one token, both parities, past small block sizes."""

SECONDS = 20.0
"""Far above what a model of a few hundred nodes takes: its verdict is no matter of luck."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A graph is causal: row ``i`` of the new tokens is reached by positions up to ``past + i``.

    Positions are the rows of the past, ``0 … past - 1``, then the new tokens. Axes may be counted
    from the end.

    Attributes:
        tokens: Inputs that hold new tokens, ``name -> axis``.
        past: Inputs that hold the past, such as a cache, ``name -> axis``.
        total: Inputs that hold the past and the new tokens, such as an attention mask.
        outputs: Outputs to examine, ``name -> query axis``. ``None``: every output with an axis
            named as a token axis of an input is.
        others: Outputs whose rows are not the tokens one by one. Those that grow with the tokens
            are examined too: see `causal_attn.verify.influence.rows`.
        known: Inputs whose values are fixed, so that no position is in them: an array that
            broadcasts to the input, or a function of shape, token axis and past (`ones`,
            `positions`). An attention mask of ones and a past length belong here.
        conditions: Of inputs in `known` that a caller may feed otherwise, what their values there
            say, such as ``token_type_ids are 0``. They are taken as data too: where the claim
            needs their values, the verdict is conditional, in these words.
        lengths: Numbers of new tokens to examine. A fixed token axis leaves only its own.
        pasts: Sizes of the past to examine with each length.
        longest: Positions that the graph has room for. Calls with up to as many are examined too,
            as `causal_attn.verify.influence.calls` lists them. 0: none but those above.
        seconds: Time after which no more of those are begun.
        dims: Sizes of other named dims; 1 unless given.
        batch: Axes of inputs along which the sequences of a batch lie, ``name -> axis``, for
            `causal_attn.verify.influence.prove_independent`.
    """

    tokens: Mapping[str, int]
    past: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] | None = None
    others: Collection[str] = ()
    known: Mapping[str, Known] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    lengths: Sequence[int] = LENGTHS
    pasts: Sequence[int] = (0,)
    longest: int = 0
    seconds: float = SECONDS
    dims: Mapping[str, int] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)

    @property
    def axes(self) -> Axes:
        """The token axes of the inputs."""
        return Axes(dict(self.tokens), dict(self.past), dict(self.total))
