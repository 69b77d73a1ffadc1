"""Prompt look-up: guess the next tokens from where the last ones stood before, and check them.

What follows the same few tokens earlier in the sequence is put through the model in one call, and
as many are kept as the model itself would have chosen one by one. The tokens are those of greedy
decoding; what changes is how many come out of a call. Saxena 2023, "Prompt Lookup Decoding";
Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["guess"]

LONGEST, SHORTEST = 3, 1
"""Tokens at the end that are looked for, the longest match first."""


def guess(tokens: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens that may come next; empty if the end stands nowhere else.

    Args:
        tokens: The sequence so far.
        count: >= 1.
    """
    for size in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        end = list(tokens[-size:])
        # The latest place, since what was said last is the likeliest to be said again.
        for start in range(len(tokens) - size - 1, -1, -1):
            if list(tokens[start : start + size]) == end:
                return list(tokens[start + size : start + size + count])
    return []
