"""What a check runs: a graph on its provider, inputs for it, and what should come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from causal_attn.errors import CausalAttnError, UsageError
from causal_attn.package.certificate import Check
from causal_attn.runtime import Session
from causal_attn.verify.feeds.feeder import LENGTHS, Feeder, switch_lengths
from causal_attn.verify.oracle.yardstick import Yardstick

if TYPE_CHECKING:
    # Finding an interface takes onnx, which a trial of a contract alone does not have.
    from causal_attn.verify.interface.discover import Interface

__all__ = ["PROBE_LENGTHS", "Trial", "require_lengths"]

PROBE_LENGTHS = (2, 3, 8, 13, 33, 130)
"""Tokens the probes run at; 1 has no future."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One graph on one provider.

    Attributes:
        session: The graph.
        feeder: Makes its inputs.
        interface: Which of its inputs and outputs are what; its feeder is `feeder`. ``None``:
            only the session's contract is known, and checks that ask for more are left out.
        yardstick: What results are held against; ``None`` leaves those checks out.
        lengths: Tokens of the parity check, each >= 1. Both sides of a switch between forms are
            added: each branch of such a graph is a graph of its own.
        reach: Tokens that it is known to run at without a past; 0: the largest of `lengths`.
        marks: Numbers of tokens at which the graph may change, as
            `causal_attn.verify.interface.graph_lengths` finds them.
        seed: Of all values that are drawn.

    Raises:
        UsageError: `lengths` is empty or has one below 1.
    """

    session: Session
    feeder: Feeder
    interface: Interface | None = None
    yardstick: Yardstick | None = None
    lengths: Sequence[int] = LENGTHS
    reach: int = 0
    marks: Sequence[int] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        contract = self.feeder.contract
        lengths = {*require_lengths(self.lengths), *switch_lengths(contract)}
        object.__setattr__(self, "lengths", contract.lengths_within(lengths))
        (reach,) = contract.lengths_within([max(self.reach, self.longest)])
        object.__setattr__(self, "reach", reach)

    @property
    def longest(self) -> int:
        """The largest of `lengths`."""
        return max(self.lengths)

    @property
    def probe_lengths(self) -> tuple[int, ...]:
        """Those of `PROBE_LENGTHS` that are not longer than `reach`, and those of a switch."""
        contract = self.feeder.contract
        if contract.tokens in self.feeder.pinned:
            return (self.feeder.pinned[contract.tokens],)
        probes = [length for length in PROBE_LENGTHS if length <= self.reach] or [self.reach]
        probes = [*contract.lengths_within(probes)]
        beyond = [length for length in switch_lengths(contract) if length > max(probes)]
        return (*probes, *beyond)

    @property
    def turning_lengths(self) -> tuple[int, ...]:
        """Both sides of each of `marks`, and `reach`; ascending, none below 2."""
        contract = self.feeder.contract
        if contract.tokens in self.feeder.pinned:
            return ()
        sides = {length for mark in self.marks for length in (mark, mark + 1)} | {self.reach}
        inside = [length for length in sorted(sides) if 2 <= length <= self.reach]
        return contract.lengths_within(inside) if inside else ()

    @cached_property
    def honest(self) -> Mapping[str, float]:
        """What honest runs are off by, in parts of the largest value of each output.

        The largest error of plain arithmetic and of randomly rounded runs against the oracle, at
        two lengths. Empty without a yardstick, or where it does not run.
        """
        if self.yardstick is None:
            return {}
        found: dict[str, float] = {}
        rng = self.rng("honest")
        try:
            for sizes in self.feeder.cases(sorted({self.length(5), self.length(29)})):
                feeds = self.feeder.make(sizes, rng)
                for name, error in self.yardstick.errors(feeds, self.seed).items():
                    found[name] = max(error, found.get(name, 0.0))
        except CausalAttnError:
            return {}
        return found

    def length(self, wanted: int) -> int:
        """`wanted`, or the nearest number of tokens that is not longer than `longest`."""
        return self.feeder.contract.lengths_within([min(wanted, self.longest)])[0]

    def rng(self, check: str) -> np.random.Generator:
        """The random values of a check: a stream of its own, whatever ran before it."""
        return np.random.default_rng([self.seed, *check.encode()])

    def result(self, name: str, passed: bool | None, detail: str, **figures: Any) -> Check:
        """A check of this session with its figures."""
        return Check(
            name=name,
            passed=passed,
            detail=detail,
            figures=figures,
            provider=str(self.session.provider),
        )

    def did_not_run(self, name: str, detail: str) -> Check:
        """A failed check of a graph that does not run where it should; no later check is run."""
        return Check(
            name=name, passed=False, detail=detail, provider=str(self.session.provider), ran=False
        )


def require_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """`lengths`, if there is one and each is an integer >= 1.

    Raises:
        UsageError: They are not.
    """
    right = all(isinstance(length, int | np.integer) and length >= 1 for length in lengths)
    if not lengths or not right:
        raise UsageError(
            f"`lengths` must be numbers of tokens >= 1, at least one, got {list(lengths)}."
        )
    return tuple(int(length) for length in lengths)
