"""What is asked of a model, and what comes back: requests and their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from causal_attn.runtime.generate.sampling import Sampler, SamplingOptions, log_shares
from causal_attn.runtime.generate.stops import Stops
from causal_attn.runtime.generate.text import Text

__all__ = ["Answer", "Options", "Request", "Token"]


class Options(SamplingOptions, total=False):
    """What may be said of one answer; what is left out is the model's own default.

    Attributes:
        max_new_tokens: Most tokens of it, >= 1; ``None``: the model's default.
        stop: Texts that end it; they are not part of it. One that is a special token of the
            tokenizer ends it as that token in `ends` would.
        ends: Tokens that end it, ``()`` for none; ``None``: the model's own.
        logprobs: How many of the likeliest tokens come with each, >= 0; ``None``: none, and no
            `Token.logprob` either.
        temperature, top_k, top_p, min_p, repetition_penalty, seed: See `Sampling`.
    """

    max_new_tokens: int | None
    stop: str | Sequence[str]
    ends: Sequence[int] | None
    logprobs: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token that was generated.

    Attributes:
        id: In the vocabulary.
        text: What is certain of the text now that it came, empty without a tokenizer. The texts
            of all tokens together are the answer: up to a stop string, without special tokens,
            and with U+FFFD at its end if that cut a character.
        finish: Why nothing comes after it: ``"stop"`` for an end token or a stop string,
            ``"length"`` for `max_new_tokens`; ``None`` if more comes.
        logprob: Natural logarithm of its probability by the model's own logits, before every
            option; ``None`` if not asked for.
        likeliest: The most probable tokens and their `logprob`, the first of them first.
    """

    id: int
    text: str
    finish: Literal["stop", "length"] | None
    logprob: float | None = None
    likeliest: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how its answer is chosen; for one answer, since it counts what was chosen.

    Attributes:
        ids: The prompt, at least one token.
        sampler: Chooses.
        answer: Counts, and says when it is over.
    """

    ids: list[int]
    sampler: Sampler
    answer: Answer

    def next(self, logits: NDArray[np.float32]) -> Token:
        """The token after everything so far, of which `logits` ``[vocabulary]`` speak."""
        return self.answer.token(self.sampler.choose(logits), logits)


class Answer:
    """What was generated so far, and what ends it.

    Attributes:
        ids: The tokens so far.
        limit: Most tokens; ``None``: any number.
    """

    def __init__(
        self,
        *,
        text: Text | None,
        stops: Stops,
        ends: frozenset[int],
        limit: int | None,
        likeliest: int | None,
    ) -> None:
        self.ids: list[int] = []
        self.limit = limit
        self._pieces = None if text is None else text.pieces()
        self._stops, self._ends = stops, ends
        self._likeliest = likeliest

    def token(self, chosen: int, logits: NDArray[np.float32]) -> Token:
        """The next one, whose `logits` are those that it was chosen by."""
        self.ids.append(chosen)
        text = "" if self._pieces is None else self._stops.add(self._pieces.add(chosen))
        finish: Literal["stop", "length"] | None = None
        if chosen in self._ends or self._stops.hit:
            finish = "stop"
        elif self.limit is not None and len(self.ids) >= self.limit:
            finish = "length"
        if finish is not None and not self._stops.hit:
            if self._pieces is not None:
                text += self._stops.add(self._pieces.rest())
            text += self._stops.rest()
            if self._stops.hit:
                finish = "stop"
        if self._likeliest is None:
            return Token(id=chosen, text=text, finish=finish)
        shares = log_shares(logits)
        first = np.argsort(-shares, kind="stable")[: self._likeliest]
        return Token(
            id=chosen,
            text=text,
            finish=finish,
            logprob=float(shares[chosen]),
            likeliest={int(one): float(shares[one]) for one in first},
        )
