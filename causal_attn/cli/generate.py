"""`causal-attn generate`."""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causal_attn.cli.console import JsonFlag, err, print_json
from causal_attn.errors import ContextError, UsageError

if TYPE_CHECKING:
    from causal_attn.runtime.generate import Generator, Token

__all__ = ["SamplingFlags", "generate"]


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen; what is left out is the model's own default."""

    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest.")] = None
    top_k: Annotated[int | None, typer.Option(help="Only so many of the likeliest; 0: all.")] = (
        None
    )
    top_p: Annotated[float | None, typer.Option(help="Only the likeliest of this share.")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Only those of this share of the likeliest.")
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: what was said is less likely.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None

    def given(self) -> dict[str, Any]:
        """Those that were."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def generate(
    path: Annotated[Path, typer.Argument(help="A package of a language model.")],
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Text to go on.")] = None,
    ids: Annotated[str | None, typer.Option(help="Tokens to go on: 1,2,3")] = None,
    *,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Ask by the chat template; without -p, line by line."),
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", help="Default: the model's, or 256.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends it; repeat it.")] = None,
    lookup: Annotated[
        int, typer.Option(help="Tokens to guess from the text itself; greedy only.")
    ] = 0,
    sampling: SamplingFlags,
    # Not the -p of other commands, which is the prompt here.
    provider: Annotated[
        str, typer.Option(help="cpu, cuda, tensorrt, openvino or webgpu.")
    ] = "cpu",
    accept: Annotated[str, typer.Option(help="certified or unverified.")] = "certified",
    as_json: JsonFlag = False,
) -> None:
    """Generate with a language model, token by token, without torch."""
    # Raises OSError for a mistyped path, before ONNX Runtime is imported.
    path.stat()
    tokens = None if ids is None else _parsed(ids)
    if tokens is not None and (chat or prompt is not None):
        raise UsageError("`ids` must be left out with `prompt` or `chat`, which are text.")
    if prompt is None and tokens is None and (not chat or as_json):
        raise UsageError("`prompt` or `ids` must be given, or `chat` to be asked line by line.")

    from causal_attn.runtime.generate import Generator
    from causal_attn.runtime.generate.decoding import require_ids

    with Generator.open(path, provider, accept=accept) as generator:
        default = generator.defaults.max_new_tokens or 256
        limit = default if max_new_tokens is None else max_new_tokens
        options: dict[str, Any] = {
            "max_new_tokens": limit,
            "stop": stop or (),
            "lookup": lookup,
            **sampling.given(),
        }
        if tokens is not None:
            require_ids(tokens, generator.decoder.vocabulary, "ids")
        if chat and generator.text is None:
            raise UsageError("`chat` must be left out without a tokenizer. Use `ids`.")
        if chat and prompt is None:
            _converse(generator, options)
            return
        asked: str | list[int] = prompt or "" if tokens is None else tokens
        if chat:
            asked = _asked(generator, [{"role": "user", "content": prompt or ""}])
        streamed = _Stream(
            generator.generate(asked, **options), spoken=generator.text is not None, silent=as_json
        )
        streamed.run()
        if as_json:
            print_json(streamed.to_dict())
        else:
            err.print(f"[dim]{streamed.summary()}[/]")


class _Stream:
    """Tokens as they come, written to stdout, and how long they took."""

    def __init__(self, tokens: Iterator[Token], *, spoken: bool, silent: bool = False) -> None:
        self._tokens, self._spoken, self._silent = tokens, spoken, silent
        self.ids: list[int] = []
        self.text, self.finish = "", "context"
        self.first = self.rest = 0.0

    def run(self) -> None:
        """Until the end of the answer or of the context.

        Raises:
            ContextError: The prompt itself is longer than the context.
        """
        started = time.perf_counter()
        try:
            for token in self._tokens:
                self._add(token)
                if len(self.ids) == 1:
                    self.first = time.perf_counter() - started
        except ContextError:
            # What came is the answer: there is no room for more.
            if not self.ids:
                raise
        self.rest = time.perf_counter() - started - self.first
        if not self._silent:
            sys.stdout.write("\n")

    def summary(self) -> str:
        """Tokens a second after the first, which is mostly the prompt."""
        speed = (len(self.ids) - 1) / self.rest if len(self.ids) > 1 else 0.0
        return (
            f"{len(self.ids)} tokens, {self.first:.2f} s to the first, then {speed:.1f} a second; "
            f"ended by {self.finish}"
        )

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        seconds = {"first": self.first, "rest": self.rest}
        return {"ids": self.ids, "text": self.text, "finish": self.finish, "seconds": seconds}

    def _add(self, token: Token) -> None:
        self.ids.append(token.id)
        self.text += token.text
        self.finish = token.finish or self.finish
        if self._silent:
            return
        # A model without a tokenizer speaks in numbers.
        shown = token.text if self._spoken else f"{token.id} "
        sys.stdout.write("".join(filter(_harmless, shown)))
        sys.stdout.flush()


def _harmless(character: str) -> bool:
    """Whether a terminal shows it as text; spaces and joiners of other scripts are text."""
    # Controls, formats that reorder a line, surrogates, separators of lines.
    commands = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return character in "\n\t\u200c\u200d" or unicodedata.category(character) not in commands


def _converse(generator: Generator, options: dict[str, Any]) -> None:
    """Line by line until the end of stdin; every answer is part of what comes next.

    What no longer fits into the context begins a new conversation.
    """
    messages: list[dict[str, str]] = []
    while True:
        err.print("[bold]>[/] ", end="")
        line = sys.stdin.readline()
        if not line:
            return
        if not line.strip():
            continue
        said = {"role": "user", "content": line.strip()}
        answer = _answered(generator, [*messages, said], options)
        if answer is None and messages:
            err.print("[dim]The conversation no longer fits into the context and begins anew.[/]")
            messages.clear()
            answer = _answered(generator, [said], options)
        if answer is None:
            err.print("error: the line must fit into the context. Write a shorter one.")
            continue
        messages += [said, {"role": "assistant", "content": answer}]


def _answered(
    generator: Generator, messages: list[dict[str, str]], options: dict[str, Any]
) -> str | None:
    """What the model says next, streamed; ``None`` if `messages` are longer than the context."""
    streamed = _Stream(generator.generate(_asked(generator, messages), **options), spoken=True)
    try:
        streamed.run()
    except ContextError:
        return None
    err.print(f"[dim]{streamed.summary()}[/]")
    return streamed.text


def _asked(generator: Generator, messages: list[dict[str, str]]) -> list[int]:
    assert generator.text is not None  # the command refuses a chat without
    return generator.text.chat(messages)


def _parsed(ids: str) -> list[int]:
    parts = [part.strip() for part in ids.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"`ids` must look like 1,2,3, got {ids!r}.")
    return [int(part) for part in parts]
