"""Which calls are examined: the lengths and pasts that are asked for, and every one up to an end.

A leak may show at one length only (``tokens == 20``), from a length on (a mask buffer of 32), or
behind a past of some size. So each number of new tokens is examined without a past and behind one,
and each size of the past once: the more tokens, the shorter the past. What that takes is bounded
in time; the calls that are asked for come first and are always examined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from causal_attn.errors import InputError
from causal_attn.verify.influence.claim import Claim
from causal_attn.verify.influence.feed import bind
from causal_attn.verify.influence.graph import Graph

__all__ = ["MOST_TOKENS", "Sizes", "asked_calls", "every_length", "further_calls", "in_words"]

Sizes = tuple[int, int]
"""New tokens, and rows of the past before them."""

MOST_TOKENS = 64
"""The end of "every length": beyond it only the longest that is known to run."""


def asked_calls(graph: Graph, claim: Claim) -> list[Sizes]:
    """`claim.lengths` behind each of `claim.pasts`, as far as fixed sizes of the graph allow.

    Raises:
        InputError: They are no sizes, or none fits.
    """
    wanted = sorted({int(length) for length in claim.lengths})
    if not wanted or wanted[0] < 1:
        raise InputError(f"`lengths` must be integers >= 1, got {wanted}.")
    if not claim.pasts or min(claim.pasts) < 0:
        raise InputError(f"`pasts` must be integers >= 0, got {list(claim.pasts)}.")
    dims = {graph.shapes[name][axis] for name, axis in claim.tokens.items()}
    if fixed := sorted({dim for dim in dims if isinstance(dim, int)}):
        wanted = fixed
    calls = _fitting(
        graph, claim, [(tokens, past) for past in sorted(set(claim.pasts)) for tokens in wanted]
    )
    if not calls:
        raise InputError(
            "`lengths` and `pasts` must fit the fixed sizes of the graph, got lengths "
            f"{wanted} and pasts {list(claim.pasts)}. Give the sizes that the model was exported "
            "with."
        )
    return calls


def further_calls(graph: Graph, claim: Claim) -> list[Sizes]:
    """Every length up to `claim.longest`, and where there is a past every size of it."""
    longest, least, behind = claim.longest, min(claim.pasts), max(claim.pasts)
    lengths = range(min(claim.lengths), min(longest, MOST_TOKENS) + 1)
    calls = [(tokens, least) for tokens in (*lengths, longest) if tokens]
    if behind > least:
        # One token has no future, so the longest past has two behind it.
        total = min(MOST_TOKENS + 2, longest)
        calls += [(tokens, total - tokens) for tokens in range(2, total)]
    # A table of positions may end where the longest call did that is known to run.
    asked = asked_calls(graph, claim)
    inside = [call for call in dict.fromkeys(calls) if sum(call) <= longest and call not in asked]
    return _fitting(graph, claim, inside)


def every_length(graph: Graph, claim: Claim) -> list[Sizes]:
    """Every length up to the largest that is examined, behind the smallest past."""
    largest = max(claim.longest, *claim.lengths)
    lengths = {*range(1, min(largest, MOST_TOKENS) + 1), largest}
    return _fitting(graph, claim, [(tokens, min(claim.pasts)) for tokens in sorted(lengths)])


def _fitting(graph: Graph, claim: Claim, calls: Iterable[Sizes]) -> list[Sizes]:
    return [call for call in calls if bind(graph, claim.axes, *call, claim.dims) is not None]


def in_words(calls: Sequence[Sizes]) -> str:
    """Such as ``at 1 to 64 and 257 tokens, and behind pasts of 1 to 64``."""
    pasts = {past for _, past in calls if past}
    alone = {tokens for tokens, past in calls if past == 0}
    behind = {tokens for tokens, past in calls if past}
    parts = []
    if alone:
        parts.append(f"at {_ranges(alone)} tokens")
    if pasts:
        parts.append(f"behind pasts of {_ranges(pasts)} (at {_ranges(behind)} tokens)")
    return ", and ".join(parts)


def _ranges(numbers: Iterable[int]) -> str:
    """Such as ``1 to 64, 257``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a} to {b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    return ", ".join(words)
