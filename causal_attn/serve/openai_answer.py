"""What OpenAI's completions and chat endpoints answer: whole, or token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from causal_attn.runtime.generate import Token
from causal_attn.serve.openai_request import Asked

__all__ = ["Written"]


class Written:
    """Writes the answer to one request.

    Args:
        asked: The request.
        identity: Of the request.
        prompt_tokens: In the prompt.
        word: What a token is in text.
    """

    def __init__(
        self, asked: Asked, identity: str, prompt_tokens: int, word: Callable[[int], str]
    ) -> None:
        self._asked, self._word, self._prompt = asked, word, prompt_tokens
        self._chat = asked.messages is not None
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._common = {
            "id": f"{prefix}-{identity}",
            "created": int(time.time()),
            "model": asked.model,
        }
        self._characters = self._sent = 0

    def whole(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """The answer that `tokens` are."""
        text = "".join(token.text for token in tokens)
        said = (
            {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        )
        choice = said | self._details(tokens) | {"finish_reason": _finish(tokens)}
        kind = "chat.completion" if self._chat else "text_completion"
        return {
            **self._common,
            "object": kind,
            "choices": [{"index": 0, **choice}],
            "usage": self._usage(len(tokens)),
        }

    def opening(self) -> dict[str, Any] | None:
        """What a stream begins with: in a chat, who speaks."""
        if not self._chat:
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def piece(self, token: Token) -> dict[str, Any] | None:
        """What a stream says of `token`; ``None``: nothing yet, half a character came."""
        self._sent += 1
        if not (token.text or token.finish or self._asked.logprobs or self._asked.token_ids):
            return None
        said = {"delta": {"content": token.text}} if self._chat else {"text": token.text}
        return self._chunk(said | self._details([token]) | {"finish_reason": token.finish})

    def full(self) -> dict[str, Any]:
        """What a stream says where the context ended it."""
        said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._chunk(said | {"finish_reason": "length"})

    def ending(self) -> dict[str, Any] | None:
        """The last of a stream, where the numbers of tokens were asked for."""
        if not self._asked.usage:
            return None
        return {**self._chunk(None), "usage": self._usage(self._sent)}

    def _chunk(self, choice: dict[str, Any] | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        choices = [] if choice is None else [{"index": 0, **choice}]
        return {**self._common, "object": kind, "choices": choices}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": tokens,
            "total_tokens": self._prompt + tokens,
        }

    def _details(self, tokens: Sequence[Token]) -> dict[str, Any]:
        details: dict[str, Any] = {"logprobs": None}
        if self._asked.logprobs:
            details["logprobs"] = (
                {"content": [self._chat_logprob(token) for token in tokens]}
                if self._chat
                else self._logprobs(tokens)
            )
        if self._asked.token_ids:
            details["token_ids"] = [token.id for token in tokens]
        return details

    def _chat_logprob(self, token: Token) -> dict[str, Any]:
        def of(one: int, share: float | None) -> dict[str, Any]:
            word = self._word(one)
            return {"token": word, "logprob": share, "bytes": list(word.encode())}

        likeliest = [of(one, share) for one, share in (token.likeliest or {}).items()]
        return {**of(token.id, token.logprob), "top_logprobs": likeliest}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._characters)
            self._characters += len(token.text)
        return {
            "tokens": [self._word(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {self._word(one): share for one, share in (token.likeliest or {}).items()}
                for token in tokens
            ],
            "text_offset": offsets,
        }


def _finish(tokens: Sequence[Token]) -> str:
    # Without a reason of its own an answer was ended by the context.
    return (tokens[-1].finish if tokens else None) or "length"
