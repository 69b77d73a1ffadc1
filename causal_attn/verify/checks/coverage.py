"""What a check covered, in one line that a person can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["covered", "ranges"]

_WORDS = {"batch": "batches", "past_tokens": "pasts"}


def ranges(numbers: Iterable[int]) -> str:
    """Such as ``1 to 3, 5 and 8``: each number once, neighbours joined."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words: list[str] = []
    for first, last in runs:
        joined = last > first + 1
        words += [f"{first} to {last}"] if joined else [str(n) for n in range(first, last + 1)]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def covered(cases: Sequence[Mapping[str, int]], tokens: str) -> str:
    """Such as ``at 2, 3 and 8 tokens, in batches of 1 to 3, behind pasts of 0 and 7``.

    Args:
        cases: Sizes of the calls that were made; at least one.
        tokens: Name of the dim of tokens.
    """
    parts = [f"at {ranges(case[tokens] for case in cases)} tokens"]
    for name, prefix in (("batch", "in"), ("past_tokens", "behind")):
        sizes = {case[name] for case in cases if name in case}
        if sizes - {0}:
            parts.append(f"{prefix} {_WORDS[name]} of {ranges(sizes)}")
    return ", ".join(parts)
