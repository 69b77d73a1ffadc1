"""Text to tokens and back, and conversations to text, with the model's own files.

The tokenizer is ``tokenizer.json``, read by the library `tokenizers`. The chat template is a jinja
program that comes with the model: it runs in jinja's sandbox, cannot change what it is given, and
reaches neither files nor modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from causal_attn.errors import MissingDependencyError, PackageError, UsageError
from causal_attn.json_text import MAX_JSON_BYTES, shown
from causal_attn.runtime.generate.defaults import read_json

__all__ = ["Pieces", "Text"]

_INSTALL = "Install it with: pip install 'causal-attn[text]'"


class Text:
    """A model's tokenizer and chat template; safe to use from many threads.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``.
        template: A jinja program of messages, or several by name, of which ``default`` is taken,
            and ``tool_use`` with tools, as in `transformers`; ``None``: none.
        special: Names that the template may use, as ``bos_token``.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | Mapping[str, str] | None = None,
        special: Mapping[str, str] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._templates = {"default": template} if isinstance(template, str) else template or {}
        self._special = dict(special or {})
        self._special_tokens: dict[str, int] = {
            token.content: number
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        }

    @property
    def chats(self) -> bool:
        """Whether it has a chat template."""
        return bool(self._templates)

    @classmethod
    def read(cls, folder: Path) -> Text | None:
        """What lies in `folder`; ``None`` if it has no ``tokenizer.json``.

        Raises:
            PackageError: A file cannot be read.
            MissingDependencyError: The extra ``[text]`` is not installed.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingDependencyError(
                f"Text needs the library tokenizers. {_INSTALL}", name="tokenizers"
            ) from error
        try:
            tokenizer = Tokenizer.from_file(str(path))
        # The library raises bare exceptions, with a message about its Rust types.
        except Exception as error:
            raise PackageError(f"tokenizer.json must be a tokenizer, got: {error}.") from error
        config = read_json(folder / "tokenizer_config.json")
        special = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token")
        }
        return cls(
            tokenizer,
            _templates(folder, config),
            {name: value for name, value in special.items() if isinstance(value, str)},
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of `text`.

        Args:
            text: Any.
            special: Whether the tokenizer adds its own first and last tokens.

        Raises:
            UsageError: `text` is no text, or has half a character (a lone surrogate).
        """
        if not isinstance(text, str):
            raise UsageError(f"`text` must be a str, got {shown(text)}.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"`text` must be Unicode, got a surrogate in {shown(text)}."
            ) from None
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def special_token(self, text: str) -> int | None:
        """The special token that is written `text`, which `decode` leaves out; ``None``: none."""
        return self._special_tokens.get(text)

    def chat(self, messages: Sequence[Mapping[str, str]], **variables: Any) -> list[int]:
        """Tokens that ask the model for the next message of a conversation.

        Args:
            messages: Each with ``role`` and ``content``, the oldest first.
            variables: Others that the template knows.

        Raises:
            UsageError: `messages` are no such list, the model has no template, or the template
                refuses them.
            MissingDependencyError: jinja2 is not installed.
        """
        if not isinstance(messages, list | tuple) or not all(
            isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in messages
        ):
            raise UsageError(
                f"`messages` must be a list of dicts with role and content, got {shown(messages)}."
            )
        if not self._templates:
            raise UsageError(
                "`messages` must go to a model with a chat template, got one without. Give text."
            )
        tools = variables.get("tools") is not None and "tool_use" in self._templates
        template = self._templates.get("tool_use" if tools else "default")
        if template is None:
            raise UsageError(
                "`messages` must go to a model with a chat template named default, got "
                f"{shown(sorted(self._templates))}. Name one so in tokenizer_config.json."
            )
        # The template writes the special tokens itself.
        return self.encode(self._rendered(template, messages, variables), special=False)

    def pieces(self) -> Pieces:
        """The text of tokens as they come."""
        return Pieces(self.tokenizer)

    def _rendered(
        self, template: str, messages: Sequence[Mapping[str, str]], variables: dict[str, Any]
    ) -> str:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise MissingDependencyError(
                f"A chat template needs jinja2. {_INSTALL}", name="jinja2"
            ) from error

        def refuse(message: str) -> None:
            raise TemplateError(message)

        # Options and names are those that templates are written for:
        # https://huggingface.co/docs/transformers/chat_templating_writing
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        names = {"messages": list(messages), "add_generation_prompt": True, **self._special}
        try:
            return environment.from_string(template).render(names | variables)
        # A template may divide by zero or index what is not there, as any program.
        except Exception as error:
            raise UsageError(
                f"`messages` must be what the model's chat template takes, got: "
                f"{type(error).__name__}: {error}."
            ) from error


class Pieces:
    """The text that is certain after each token: bytes of a character may come in several.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._said = ""

    def add(self, token: int) -> str:
        """What `token` adds; empty while a character is not whole."""
        self._ids.append(token)
        try:
            text = self._stream.step(self._tokenizer, token) or ""
        # It gives up where a token takes back what was certain; later tokens have text again.
        except Exception:  # noqa: BLE001
            text = ""
        self._said += text
        return text

    def rest(self) -> str:
        """What is missing once nothing more comes: U+FFFD for a character that stayed half."""
        whole: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return whole[len(self._said) :] if whole.startswith(self._said) else ""


def _templates(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    path = folder / "chat_template.jinja"
    if path.is_file() and path.stat().st_size <= MAX_JSON_BYTES:
        return path.read_text(encoding="utf-8", errors="replace")
    found = config.get("chat_template")
    if found is None or isinstance(found, str):
        return found
    named = isinstance(found, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("template"), str)
        for one in found
    )
    if not named:
        raise PackageError(
            "`chat_template` of tokenizer_config.json must be a text or a list of objects with "
            f"name and template, got {shown(found)}."
        )
    return {one["name"]: one["template"] for one in found}
