"""What the model keeps of prompts that came before, for those that begin alike."""

from __future__ import annotations

from collections.abc import Sequence

from causal_attn.runtime.generate.decoder import Decoder
from causal_attn.runtime.generate.decoding import Decoding

__all__ = ["Prefixes"]

SHORTEST = 16
"""Tokens in common that are worth copying a cache for; fewer are computed anew."""


class Prefixes:
    """The last prompts, at most so many tokens together; the one used longest ago goes first.

    Args:
        decoder: The model.
        tokens: >= 0, most tokens of all prompts that are kept.
        context: Of the sequences that begin here.
    """

    def __init__(self, decoder: Decoder, tokens: int, context: int | None) -> None:
        self._decoder, self._limit, self._context = decoder, tokens, context
        self._kept: list[Decoding] = []

    def begin(self, ids: Sequence[int]) -> Decoding:
        """A sequence that already holds as much of the prompt `ids` as is kept, never all of it.

        The last token is left to be fed, since its logits are what comes next.
        """
        best, common = None, 0
        for kept in self._kept:
            if (shared := _common(kept.tokens, ids)) > common:
                best, common = kept, shared
        common = min(common, len(ids) - 1)
        if best is None or common < min(SHORTEST, len(ids) - 1) or common == 0:
            return Decoding(self._decoder, context=self._context)
        self._kept.remove(best)
        self._kept.append(best)
        sequence = best.copy()
        sequence.rewind(len(sequence.tokens) - common)
        return sequence

    def keep(self, sequence: Decoding) -> None:
        """Remember `sequence` as it is, which holds a prompt."""
        if len(sequence.tokens) > self._limit:
            return
        self._kept = [one for one in self._kept if one.tokens != sequence.tokens]
        self._kept.append(sequence.copy())
        while sum(len(one.tokens) for one in self._kept) > self._limit:
            self._kept.pop(0)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    shorter = min(len(first), len(second))
    return next((i for i in range(shorter) if first[i] != second[i]), shorter)
