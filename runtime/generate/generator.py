"""Text or tokens in, tokens out, one after another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import ContextError, UsageError
from causal_attn.package.read import read_package
from causal_attn.runtime.generate.decoder import Decoder
from causal_attn.runtime.generate.decoding import Decoding, require_ids
from causal_attn.runtime.generate.defaults import Defaults
from causal_attn.runtime.generate.lookup import guess
from causal_attn.runtime.generate.sampling import Sampler, SamplingOptions, log_shares
from causal_attn.runtime.generate.stops import Stops
from causal_attn.runtime.generate.text import Text
from causal_attn.runtime.loading import load
from causal_attn.runtime.providers import require_provider
from causal_attn.runtime.session import Session

__all__ = ["Generator", "Token"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token that was generated.

    Attributes:
        id: In the vocabulary.
        text: What is certain of the text now that it came, empty without a tokenizer. The texts
            of all tokens together are the answer: up to a stop string, without special tokens.
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


class Generator:
    """Generates with a language model that `causal_attn.export.export` wrote.

    It holds nothing of a sequence: any number of threads may generate at once.

    Args:
        session: Of the model.
        text: Its tokenizer; ``None``: only tokens go in and come out.
        defaults: What is done where a call does not say otherwise.

    Raises:
        UsageError: The session is not of a language model.
    """

    def __init__(
        self, session: Session, *, text: Text | None = None, defaults: Defaults | None = None
    ) -> None:
        self.decoder = Decoder(session)
        self.text = text
        self.defaults = Defaults() if defaults is None else defaults

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], provider: str = "cpu", **options: Any
    ) -> Generator:
        """Load a package with the tokenizer and the defaults that lie in it.

        Args:
            path: The package's folder.
            provider: As in `causal_attn.runtime.load`.
            options: The other arguments of `causal_attn.runtime.load`.

        Raises:
            MissingDependencyError: It has a tokenizer, and the extra ``[text]`` is not installed.
            CausalAttnError: As in `causal_attn.runtime.load`.
        """
        names = {name: options.get(name) for name in ("component", "variant")}
        session = load(path, provider, **options)
        try:
            variant = read_package(path).select(require_provider(provider), *names.values())
            folder = variant.directory
            return cls(session, text=Text.read(folder), defaults=Defaults.read(folder))
        except BaseException:
            session.close()
            raise

    def start(self) -> Decoding:
        """A sequence without tokens: `Decoding.feed` puts tokens in and gives logits."""
        return Decoding(self.decoder, context=self.defaults.context)

    # What every service lets its clients say; each is left out more often than not.
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        ends: Sequence[int] | None = None,
        logprobs: int | None = None,
        lookup: int = 0,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[Token]:
        """Continue `prompt`, token by token, for as long as the result is asked for more.

        ``with Cancellation(seconds=10):`` around the loop ends it, between two nodes of the graph.

        Args:
            prompt: Text, or at least one token.
            max_new_tokens: >= 1; ``None``: the model's default, which may be no limit.
            stop: Texts that end the answer; they are not part of it.
            ends: Tokens that end it, ``()`` for none; ``None``: the model's own.
            logprobs: How many of the likeliest tokens come with each, >= 0; ``None``: none, and
                no `Token.logprob` either.
            lookup: >= 0: most tokens that are guessed by prompt look-up and put through the model
                at once. Only greedy, whose tokens it does not change.
            sampling: See `Sampling`; what is left out is the model's own default.

        Returns:
            An iterator; the last token has `Token.finish`.

        Raises:
            UsageError: An argument is wrong, or of a kind that this model cannot do.
            ContextError: While it is iterated: the context is full. Its ``tokens`` are the prompt
                and everything generated.
            EngineError: While it is iterated: ONNX Runtime failed, or a `Cancellation` ended it.
        """
        _require_count("max_new_tokens", max_new_tokens, 1)
        _require_count("logprobs", logprobs, 0)
        _require_count("lookup", lookup, 0)
        ids = self._ids(prompt)
        options = self.defaults.sampling.with_options(sampling)
        if lookup and (options.temperature != 0 or self.decoder.last_only):
            why = (
                "a model that gives logits of the last token alone"
                if self.decoder.last_only
                else f"temperature {options.temperature}"
            )
            raise UsageError(
                f"`lookup` must be 0 unless decoding is greedy over all logits, got {lookup} and "
                f"{why}."
            )
        if stop and self.text is None:
            raise UsageError("`stop` must be left out without a tokenizer. Use `ends`.")
        answer = _Answer(
            text=self.text,
            stops=Stops(stop),
            ends=self.defaults.ends if ends is None else frozenset(ends),
            limit=self.defaults.max_new_tokens if max_new_tokens is None else max_new_tokens,
            likeliest=logprobs,
        )
        return self._generate(ids, Sampler(options, ids), answer, lookup)

    def _generate(
        self, ids: list[int], sampler: Sampler, answer: _Answer, lookup: int
    ) -> Iterator[Token]:
        decoding = self.start()
        logits = decoding.feed(ids)[None]
        guessed: list[int] = []
        while True:
            # Row i of the logits follows guess i - 1: it counts while the guesses before it hold.
            for row, wrong in zip(logits, [*guessed, None], strict=True):
                chosen = sampler.choose(row)
                token = answer.token(chosen, row)
                yield token
                if token.finish is not None:
                    return
                if chosen != wrong:
                    break
            kept = [*ids, *answer.ids]
            decoding.rewind(len(decoding.tokens) - (len(kept) - 1))
            room = decoding.room
            if room == 0:
                raise ContextError(
                    f"The sequence must have at most {len(kept) - 1} tokens, got one more.", kept
                )
            wanted = lookup if room is None else min(lookup, room - 1)
            guessed = guess(kept, wanted) if wanted else []
            new = [chosen, *guessed]
            logits = decoding.feed_all(new) if guessed else decoding.feed(new)[None]

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return require_ids(prompt, self.decoder.vocabulary, "prompt")
        if self.text is None:
            raise UsageError(
                "`prompt` must be tokens for a model without a tokenizer, got text. A model that "
                "was exported from its folder has one."
            )
        return require_ids(self.text.encode(prompt), self.decoder.vocabulary, "prompt")

    def close(self) -> None:
        """Close the session."""
        self.decoder.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Answer:
    """What was generated so far, and what ends it."""

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
        self._pieces = None if text is None else text.pieces()
        self._stops, self._ends, self._limit = stops, ends, limit
        self._likeliest = likeliest

    def token(self, chosen: int, logits: NDArray[np.float32]) -> Token:
        """The next one, whose `logits` are those that it was chosen by."""
        self.ids.append(chosen)
        text = "" if self._pieces is None else self._stops.add(self._pieces.add(chosen))
        finish: Literal["stop", "length"] | None = None
        if chosen in self._ends or self._stops.hit:
            finish = "stop"
        elif self._limit is not None and len(self.ids) >= self._limit:
            finish = "length"
        if finish is not None and not self._stops.hit:
            text += self._stops.rest()
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


def _require_count(name: str, value: Any, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise UsageError(f"`{name}` must be an integer >= {least} or None, got {value!r}.")
