"""Text or tokens in, tokens out, one after another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from causal_attn.errors import ContextError, UsageError
from causal_attn.json_text import shown
from causal_attn.package.read import read_package
from causal_attn.runtime.generate.answer import Answer, Options, Request, Token
from causal_attn.runtime.generate.decoder import Decoder
from causal_attn.runtime.generate.decoding import Decoding, require_ids
from causal_attn.runtime.generate.defaults import Defaults
from causal_attn.runtime.generate.lookup import guess
from causal_attn.runtime.generate.sampling import Sampler
from causal_attn.runtime.generate.stops import Stops
from causal_attn.runtime.generate.text import Text
from causal_attn.runtime.loading import load
from causal_attn.runtime.providers import require_provider
from causal_attn.runtime.session import Session

__all__ = ["Generator"]


class Generator:
    """Generates with a language model that `causal_attn.export.export` wrote.

    It holds nothing of a sequence: any number of threads may generate at once.

    Args:
        session: Of the model.
        text: Its tokenizer; ``None``: only tokens go in and come out.
        defaults: What is done where a call does not say otherwise.
        capacity: Most tokens of prompt and answer, >= 1: a sequence that needs more ends with
            `ContextError`. A cache of fixed capacity takes its memory for so many when a
            sequence begins. ``None``: as many as the model allows, and such a cache becomes
            larger as tokens come.

    Raises:
        UsageError: The session is not of a language model, or `capacity` is no such number.
    """

    def __init__(
        self,
        session: Session,
        *,
        text: Text | None = None,
        defaults: Defaults | None = None,
        capacity: int | None = None,
    ) -> None:
        self.decoder = Decoder(session, capacity=capacity)
        self.text = text
        self.defaults = Defaults() if defaults is None else defaults

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        provider: str = "cpu",
        *,
        capacity: int | None = None,
        **options: Any,
    ) -> Generator:
        """Load a package with the tokenizer and the defaults that lie in it.

        Args:
            path: The package's folder.
            provider: As in `causal_attn.runtime.load`.
            capacity: As of `Generator`.
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
            text, defaults = Text.read(folder), Defaults.read(folder)
            return cls(session, text=text, defaults=defaults, capacity=capacity)
        except BaseException:
            session.close()
            raise

    def start(self) -> Decoding:
        """A sequence without tokens: `Decoding.feed` puts tokens in and gives logits."""
        return Decoding(self.decoder, context=self.defaults.context)

    def generate(
        self, prompt: str | Sequence[int], *, lookup: int = 0, **options: Unpack[Options]
    ) -> Iterator[Token]:
        """Continue `prompt`, token by token, for as long as the result is asked for more.

        ``with Cancellation(seconds=10):`` around the loop ends it, between two nodes of the graph.

        Args:
            prompt: Text, or at least one token.
            lookup: >= 0: most tokens that are guessed by prompt look-up and put through the model
                at once. Only greedy, whose tokens it does not change.
            options: See `Options`: ``max_new_tokens``, ``stop``, ``ends``, ``logprobs``,
                ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty``, ``seed``.

        Returns:
            An iterator; the last token has `Token.finish`.

        Raises:
            UsageError: An argument is wrong, or of a kind that this model cannot do.
            ContextError: While it is iterated: the context is full. Its ``tokens`` are the prompt
                and everything generated.
            EngineError: While it is iterated: ONNX Runtime failed, or a `Cancellation` ended it.
        """
        if type(lookup) is not int or lookup < 0:
            raise UsageError(f"`lookup` must be an integer >= 0, got {shown(lookup)}.")
        request = self.request(prompt, **options)
        temperature = request.sampler.sampling.temperature
        if lookup and (temperature != 0 or self.decoder.last_only):
            why = (
                "a model that gives logits of the last token alone"
                if self.decoder.last_only
                else f"temperature {temperature}"
            )
            raise UsageError(
                f"`lookup` must be 0 unless decoding is greedy over all logits, got {lookup} and "
                f"{why}."
            )
        return self._generate(request, lookup)

    def request(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Request:
        """What `generate` is asked, checked: for those who run many at once.

        Raises:
            UsageError: An argument is wrong, or of a kind that this model cannot do.
        """
        known = {*Options.__required_keys__, *Options.__optional_keys__}
        if unknown := sorted(options.keys() - known):
            raise UsageError(f"The options must be of {sorted(known)}, got {unknown}.")
        given: Any = dict(options)
        limit, likeliest = given.pop("max_new_tokens", None), given.pop("logprobs", None)
        stop, ends = given.pop("stop", ()), given.pop("ends", None)
        _require_count("max_new_tokens", limit, 1)
        _require_count("logprobs", likeliest, 0)
        if stop and self.text is None:
            raise UsageError("`stop` must be left out without a tokenizer. Use `ends`.")
        stops = Stops(stop)
        ends = self.defaults.ends if ends is None else self._ends(ends)
        if self.text is not None:
            # Their text is left out of the answer, where no stop string would ever find it.
            tokens = [self.text.special_token(one) for one in stops.strings]
            ends |= {one for one in tokens if one is not None}
        ids = self._ids(prompt)
        return Request(
            ids,
            Sampler(self.defaults.sampling.with_options(given), ids),
            Answer(
                text=self.text,
                stops=stops,
                ends=ends,
                limit=self.defaults.max_new_tokens if limit is None else limit,
                likeliest=likeliest,
            ),
        )

    def _generate(self, request: Request, lookup: int) -> Iterator[Token]:
        decoding = self.start()
        logits = decoding.feed(request.ids)[None]
        guessed: list[int] = []
        while True:
            # Row i of the logits follows guess i - 1: it counts while the guesses before it hold.
            for row, guess_there in zip(logits, [*guessed, None], strict=True):
                token = request.next(row)
                yield token
                if token.finish is not None:
                    return
                if token.id != guess_there:
                    break
            kept = [*request.ids, *request.answer.ids]
            decoding.rewind(len(decoding.tokens) - (len(kept) - 1))
            room = decoding.room
            if room == 0:
                raise ContextError(
                    f"The sequence must have at most {len(kept) - 1} tokens, got one more.", kept
                )
            wanted = lookup if room is None else min(lookup, room - 1)
            guessed = guess(kept, wanted) if wanted else []
            new = [kept[-1], *guessed]
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

    def _ends(self, tokens: Any) -> frozenset[int]:
        # An iterator can be looked at once only.
        ends: list[Any] = list(tokens) if isinstance(tokens, Iterable) else [None]
        most = self.decoder.vocabulary - 1
        if not all(isinstance(one, int) and 0 <= one <= most for one in ends):
            raise UsageError(f"`ends` must be tokens from 0 to {most}, got {shown(tokens)}.")
        return frozenset(ends)


def _require_count(name: str, value: Any, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise UsageError(f"`{name}` must be an integer >= {least} or None, got {value!r}.")
