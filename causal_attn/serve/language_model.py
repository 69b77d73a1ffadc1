"""A language model: tensors as any other, and text through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from causal_attn.errors import ClosedError, UsageError
from causal_attn.runtime.engine import Engine, Stream
from causal_attn.runtime.generate import Generator
from causal_attn.serve.failures import RequestError
from causal_attn.serve.settings import Limits
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["LanguageModel"]

DEFAULT_NEW_TOKENS = 256
"""Of an answer where neither the request nor the model's folder says how long it may be."""


class LanguageModel(TensorModel):
    """Answers prompts, many at a time, beside what `TensorModel` does; `stop` closes it.

    Args:
        name: That clients call it by.
        generator: The model with its tokenizer.
        limits: Of one request.
    """

    def __init__(self, name: str, generator: Generator, limits: Limits) -> None:
        super().__init__(name, generator.decoder.session, limits)
        self.generator = generator
        self.engine = Engine(
            generator, max_running=limits.max_running, max_waiting=limits.max_waiting
        )
        self._most, self._seconds = limits.max_new_tokens, limits.seconds
        self._longest = limits.max_tokens

    async def submit(
        self, prompt: str | Sequence[int], options: dict[str, Any]
    ) -> tuple[Stream, int]:
        """The answer to `prompt`, as it comes, and the number of tokens in the prompt.

        Args:
            prompt: Text or tokens.
            options: Of `Generator.generate`.

        Raises:
            UsageError: The prompt or an option is wrong, or the prompt is longer than it may be.
            ContextError: The prompt is longer than the context.
            BusyError: As many requests wait as may.
        """
        limit = options.get("max_new_tokens")
        if limit is None:
            usual = self.generator.defaults.max_new_tokens or DEFAULT_NEW_TOKENS
            limit = min(usual, self._most)
        if type(limit) is not int or not 1 <= limit <= self._most:
            raise RequestError(
                f"`max_tokens` must be an integer from 1 to {self._most}, got {limit!r}."
            )
        given: Any = {**options, "max_new_tokens": limit}

        def submitted() -> tuple[Stream, int]:
            text = self.generator.text
            ids = text.encode(prompt) if isinstance(prompt, str) and text is not None else prompt
            # A prompt takes the square of its length, and everyone else waits meanwhile.
            if len(ids) > self._longest:
                raise RequestError(
                    f"`prompt` must have at most {self._longest} tokens on this server, got "
                    f"{len(ids)}."
                )
            return self.engine.submit(ids, seconds=self._seconds, **given), len(ids)

        # A long prompt takes the tokenizer a while: not in the loop that serves everyone.
        return await self.turns.run(submitted)

    async def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Tokens that ask for the next message of a conversation.

        Raises:
            UsageError: The model has no tokenizer or no chat template, or refuses `messages`.
        """
        text = self.generator.text
        if text is None:
            raise UsageError(
                "`messages` must go to a model with a tokenizer, got one without. Send tokens to "
                "the completions endpoint."
            )
        return await self.turns.run(lambda: text.chat(messages))

    async def tokens(self, text: str, *, chat: bool = False) -> list[int]:
        """Tokens of `text`; with `chat`, of a conversation that begins with it.

        Raises:
            UsageError: The model has no tokenizer, or no chat template.
        """
        if chat:
            return await self.chat([{"role": "user", "content": text}])
        coder = self.generator.text
        if coder is None:
            raise UsageError("`text` must go to a model with a tokenizer, got one without.")
        return await self.turns.run(lambda: coder.encode(text))

    def word(self, token: int) -> str:
        """What `token` is in text; its number, for a model without a tokenizer."""
        text = self.generator.text
        return str(token) if text is None else text.decode([token])

    async def warm_up(self) -> None:
        """Generate one token.

        Raises:
            CausalAttnError: The model does not run.
        """
        stream, _ = await self.submit([0], {"max_new_tokens": 1, "ends": ()})
        async for _ in stream:
            pass

    async def check(self) -> None:
        """As in `TensorModel`; and the engine must still take requests.

        Raises:
            ClosedError: It does not.
            CausalAttnError: The model does not run.
        """
        if not self.engine.open:
            raise ClosedError("The engine must be open, got one that has ended.")
        await super().check()

    def numbers(self) -> dict[str, int]:
        """What there is now, by the names of metrics."""
        counts = self.engine.counts
        return {
            **super().numbers(),
            "answers_running": counts.running,
            "answers_waiting": counts.waiting,
            "answers_finished": counts.finished,
            "answers_failed": counts.failed,
            "answers_cancelled": counts.cancelled,
            "tokens_generated": counts.tokens,
            "prompt_tokens_reused": counts.reused,
        }

    def stop(self) -> None:
        """End what still runs, and close the model."""
        self.engine.close(drain=False)
        super().stop()
