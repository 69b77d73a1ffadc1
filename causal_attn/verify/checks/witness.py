"""Two inputs that differ in the future alone, and a row that differs: a leak that can be held.

A proof says that there is a path, a probe that a row moved. A witness is both inputs in full, so
that anyone can run them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.runtime import Session
from causal_attn.verify.checks.future import FUTURE
from causal_attn.verify.checks.rows import HUGE, SMALL, rows_of
from causal_attn.verify.feeds.feeder import Feeder, Feeds, Sizes
from causal_attn.verify.influence import Leak

__all__ = ["WITNESS", "Witness", "find_witness", "witness_check"]

WITNESS = "witness"

_DRAWS = 4
"""Random inputs tried for each amount of change: a path may be open for some data only."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A leak as numbers.

    Attributes:
        output: Name of the output that differs.
        row: New token, counted from 0, whose row differs.
        changed: New tokens from which on the inputs differ, and the one behind the last.
        before: Inputs by name.
        after: The same but for the new tokens in `changed`.
        old: The row with `before`.
        new: The row with `after`; both at the same place of every other axis.
    """

    output: str
    row: int
    changed: tuple[int, int]
    before: Feeds
    after: Feeds
    old: NDArray[Any]
    new: NDArray[Any]

    def __str__(self) -> str:
        """One sentence."""
        first, behind = self.changed
        which = f"token {first}" if behind == first + 1 else f"tokens {first} to {behind - 1}"
        with np.errstate(all="ignore"):
            moved = np.abs(self.new.astype(np.float64) - self.old.astype(np.float64)).max()
        return (
            f"row {self.row} of {self.output!r} moves by {moved:.3g} when {which} of the inputs do"
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By name: ``before/INPUT``, ``after/INPUT``, ``old``, ``new``, ``row``."""
        return {
            **{f"before/{name}": array for name, array in self.before.items()},
            **{f"after/{name}": array for name, array in self.after.items()},
            "old": self.old,
            "new": self.new,
            "row": np.asarray(self.row),
        }


def find_witness(
    session: Session, feeder: Feeder, leak: Leak | None, checks: tuple[Check, ...]
) -> Witness | None:
    """Inputs that show the leak that the proof or a probe found; ``None``: none was found.

    Args:
        session: The graph.
        feeder: Makes its inputs.
        leak: What the proof found.
        checks: What the probes found.
    """
    for sizes, changed in _places(feeder, leak, checks):
        rng = np.random.default_rng(0)
        for amount in (SMALL, HUGE) * _DRAWS:
            try:
                before = feeder.make(sizes, rng)
                after = feeder.perturb(before, changed, amount, rng)
                runs = [session.run(feeds) for feeds in (before, before, after)]
            except CausalAttnError:
                # Sizes that do not run have no witness.
                break
            if found := _differing(feeder, runs, sizes, changed, before, after):
                return found
    return None


def witness_check(
    witness: Witness | None, checks: tuple[Check, ...], session: Session
) -> list[Check]:
    """A failed check where a witness shows what no probe did."""
    if witness is None or any(c.name == FUTURE and c.passed is False for c in checks):
        return []
    return [Check(name=WITNESS, passed=False, detail=str(witness), provider=str(session.provider))]


def _places(
    feeder: Feeder, leak: Leak | None, checks: tuple[Check, ...]
) -> Iterator[tuple[Sizes, range]]:
    """Sizes of calls and the new tokens to change in them."""
    if leak is not None and leak.position >= leak.past:
        first = leak.position - leak.past
        yield _sizes(feeder, leak.tokens, leak.past), range(first, first + 1)
    for check in checks:
        if check.name == FUTURE and check.passed is False:
            tokens, cut = check.figures["tokens"], check.figures["cut"]
            for past in (0, 3):
                yield _sizes(feeder, tokens, past), range(cut, tokens)


def _sizes(feeder: Feeder, tokens: int, past: int) -> Sizes:
    (sizes,) = feeder.cases((tokens,))
    wanted = {"batch": 1, "past_tokens": past}
    return {**sizes, **{n: size for n, size in wanted.items() if n in sizes}, **feeder.pinned}


def _differing(
    feeder: Feeder,
    runs: Sequence[Mapping[str, NDArray[Any]]],
    sizes: Sizes,
    changed: range,
    before: Feeds,
    after: Feeds,
) -> Witness | None:
    """The first row before the change that two equal runs agree on and the change moves."""
    for tensor in feeder.watched():
        base, again, moved = (rows_of(feeder, tensor, run) for run in runs)
        past = len(base) - sizes[feeder.contract.tokens]
        for row in range(past + changed.start):
            quiet = base[row].tobytes() == again[row].tobytes()
            if quiet and base[row].tobytes() != moved[row].tobytes():
                return Witness(
                    output=tensor.name,
                    row=row - past,
                    changed=(changed.start, changed.stop),
                    before=before,
                    after=after,
                    old=base[row],
                    new=moved[row],
                )
    return None
