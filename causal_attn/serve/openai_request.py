"""What OpenAI's completions and chat endpoints are asked, read field by field.

https://platform.openai.com/docs/api-reference. A field that would change the answer and is not
known here is refused: a client must not take for sampled with ``logit_bias`` what was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from causal_attn.json_text import shown
from causal_attn.serve.failures import RequestError

__all__ = ["Asked", "read_request"]

_OPTIONS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
}
"""Fields that are read for nothing but to see that they ask for nothing."""

_ASIDE = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
"""Fields that never change an answer."""

MOST_LOGPROBS = 20
MOST_STOPS = 16
MOST_MESSAGES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request.

    Attributes:
        model: Its name.
        prompt: Text or tokens; ``None`` in a chat.
        messages: Of a chat; ``None`` elsewhere.
        options: Of `Generator.generate`.
        stream: Whether tokens are sent as they come.
        usage: Whether a stream ends with the numbers of tokens.
        token_ids: Whether tokens are sent beside their text.
    """

    model: str
    prompt: str | list[int] | None
    messages: list[dict[str, str]] | None
    options: dict[str, Any]
    stream: bool
    usage: bool
    token_ids: bool

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities were asked for."""
        return "logprobs" in self.options


def read_request(body: bytes, *, chat: bool) -> Asked:
    """The request in an HTTP body.

    Raises:
        RequestError: It is not JSON, lacks a field, or has one that cannot be done.
    """
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body must be JSON, got: {error}.") from None
    if not isinstance(values, dict):
        raise RequestError(f"The body must be a JSON object, got {shown(values)}.")
    given = {name: value for name, value in values.items() if value is not None}
    model = _taken(given, "model", str, "the name of a model", required=True)
    options = {name: given.pop(name) for name in _OPTIONS if name in given}
    options |= _limit(given) | _stop(given)
    options |= _chat_logprobs(given) if chat else _logprobs(given)
    stream = bool(_taken(given, "stream", bool, "true or false"))
    token_ids = bool(_taken(given, "return_token_ids", bool, "true or false"))
    usage = _usage(given)
    prompt = None if chat else _prompt(given)
    messages = _messages(given) if chat else None
    _require_nothing(given)
    return Asked(
        model=model,
        prompt=prompt,
        messages=messages,
        options=options,
        stream=stream,
        usage=usage,
        token_ids=token_ids,
    )


def _taken(
    given: dict[str, Any], name: str, kind: type, what: str, *, required: bool = False
) -> Any:
    value = given.pop(name, None)
    if value is None and not required:
        return None
    # True is an int to Python and no number to a client.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RequestError(f"`{name}` must be {what}, got {shown(value)}.")
    return value


def _limit(given: dict[str, Any]) -> dict[str, Any]:
    named = {
        name: _taken(given, name, int, "a number of tokens")
        for name in ("max_tokens", "max_completion_tokens")
    }
    limits = {value for value in named.values() if value is not None}
    if len(limits) > 1:
        raise RequestError(f"`max_tokens` must be `max_completion_tokens` if both come: {named}.")
    return {"max_new_tokens": limits.pop()} if limits else {}


def _stop(given: dict[str, Any]) -> dict[str, Any]:
    stop = given.pop("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stops, list)
        or len(stops) > MOST_STOPS
        or not all(isinstance(one, str) and one for one in stops)
    ):
        raise RequestError(
            f"`stop` must be a text or a list of at most {MOST_STOPS}, got {shown(stop)}."
        )
    return {"stop": stops} if stops else {}


def _logprobs(given: dict[str, Any]) -> dict[str, Any]:
    number = _taken(given, "logprobs", int, f"a number from 0 to {MOST_LOGPROBS}")
    return {} if number is None else {"logprobs": _most("logprobs", number)}


def _chat_logprobs(given: dict[str, Any]) -> dict[str, Any]:
    wanted = _taken(given, "logprobs", bool, "true or false")
    number = _taken(given, "top_logprobs", int, f"a number from 0 to {MOST_LOGPROBS}")
    if number is not None and not wanted:
        raise RequestError("`logprobs` must be true with `top_logprobs`.")
    return {"logprobs": _most("top_logprobs", number or 0)} if wanted else {}


def _most(name: str, number: int) -> int:
    if not 0 <= number <= MOST_LOGPROBS:
        raise RequestError(f"`{name}` must be from 0 to {MOST_LOGPROBS}, got {number}.")
    return number


def _usage(given: dict[str, Any]) -> bool:
    options = _taken(given, "stream_options", dict, "an object") or {}
    if unknown := sorted(options.keys() - {"include_usage", "include_obfuscation"}):
        raise RequestError(f"`stream_options` must have include_usage, got {shown(unknown)}.")
    return options.get("include_usage") is True


def _prompt(given: dict[str, Any]) -> str | list[int]:
    prompt = given.pop("prompt", None)
    # A list of one prompt is how some clients write every prompt.
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        return prompt
    raise RequestError(f"`prompt` must be one text or one list of tokens, got {shown(prompt)}.")


def _messages(given: dict[str, Any]) -> list[dict[str, str]]:
    messages = given.pop("messages", None)
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        raise RequestError(
            f"`messages` must be a list of 1 to {MOST_MESSAGES}, got {shown(messages)}."
        )
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"`{where}` must have role and content, got {shown(message)}.")
    if unknown := sorted(message.keys() - {"role", "content", "name"}):
        raise RequestError(f"`{where}` must have role and content, got {shown(unknown)}.")
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in parts
    ):
        raise RequestError(f"`{where}.content` must be text, got {shown(content)}.")
    read = {"role": message["role"], "content": "".join(part["text"] for part in parts)}
    if isinstance(message.get("name"), str):
        read["name"] = message["name"]
    return read


def _require_nothing(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _ASIDE:
            continue
        if name not in _NEUTRAL:
            raise RequestError(f"`{shown(name)}` must be left out: it is not known here.")
        if value not in _NEUTRAL[name]:
            raise RequestError(
                f"`{name}` must be {shown(_NEUTRAL[name][0])} or left out, got {shown(value)}."
            )
