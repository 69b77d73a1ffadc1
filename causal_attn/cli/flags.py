"""Say an error of the Python interface in the words of the command line, and read list flags.

A command's parameters bear the names of the arguments that they become, so the command itself
tells which flag an argument is: ``example_inputs`` is ``--example`` because `export` declares it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from causal_attn.errors import UsageError

__all__ = ["in_flags", "parse_axes", "parse_dims", "parse_lengths"]

_NAMED = re.compile(r"`(\w+)((?:\[[^\]`]*\])*)`")
_ASSIGNED = re.compile(r"\b(\w+)=(?=[\[({'\"\w])")
_ANOTHER_NAME = {"provider": "providers"}
_IN_WORDS = {
    "Give a tuple in the order of forward, or a dict by name.": (
        "Give --example NAME=FILE.npy for each, or --example FILE.npz with all of them."
    ),
}
"""Advice that is about Python values and names no argument."""


def in_flags(message: str, parameters: Iterable[Any]) -> str:
    """`message` with the flags of a command in place of arguments and Python values.

    Args:
        message: Of an error: names are in backquotes (``dims``, ``dims['x'][1]``), advice is a
            keyword argument (``check_on=('cpu',)``).
        parameters: Of the command, as typer holds them.
    """
    flags = {parameter.name: parameter for parameter in parameters}
    for alias, name in _ANOTHER_NAME.items():
        if name in flags:
            flags.setdefault(alias, flags[name])
    for advice, words in _IN_WORDS.items():
        message = message.replace(advice, words)

    def named(found: re.Match[str]) -> str:
        if found[1] not in flags:
            return found[0]
        key = re.match(r"\['([^']*)'\]", found[2])
        return f"`{_flag(flags[found[1]])}{f' {key[1]}' if key else ''}`"

    pieces, position = [], 0
    message = _NAMED.sub(named, message)
    for found in _ASSIGNED.finditer(message):
        if found.start() < position or found[1] not in flags:
            continue
        literal = _literal_at(message, found.end())
        if literal is not None:
            value, end = literal
            pieces += [message[position : found.start()], _spelled(flags[found[1]], value)]
            position = end
    return "".join((*pieces, message[position:]))


def _flag(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return next(str(option) for option in parameter.opts if option.startswith("--"))


def _literal_at(text: str, start: int) -> tuple[Any, int] | None:
    """The Python literal that begins at `start`, and where it ends; ``None``: there is none."""
    word = re.compile(r"[\w.]*\w").match(text, start)
    ends = [word.end()] if word else range(start + 1, len(text) + 1)
    for end in ends:
        try:
            return ast.literal_eval(text[start:end]), end
        except (ValueError, SyntaxError):
            continue
    return None


def _spelled(parameter: Any, value: Any) -> str:
    """What a user types to give `value`."""
    flag = _flag(parameter)
    if isinstance(value, bool):
        return flag if value or not parameter.secondary_opts else str(parameter.secondary_opts[0])
    if isinstance(value, Mapping):
        return " ".join(f"{flag} {key}={_joined(one)}" for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(f"{flag} {one}" for one in value)
    return f"{flag} {value}"


def _joined(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [value.get(axis) for axis in range(max(value, default=-1) + 1)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join("_" if one is None else str(one) for one in value)
    return str(value)


def parse_axes(entries: Sequence[str] | None) -> dict[str, int] | None:
    """``input_ids=1`` to ``{"input_ids": 1}``.

    Raises:
        UsageError: An entry of another shape.
    """
    axes = {}
    for entry in entries or ():
        name, separator, axis = entry.rpartition("=")
        if not separator or not (axis.isascii() and axis.isdigit()):
            raise UsageError(f"`--tokens-axis` must look like input_ids=1, got {entry!r}.")
        axes[name] = int(axis)
    return axes or None


def parse_dims(entries: Sequence[str] | None) -> dict[str, list[str | None]] | None:
    """``x=batch,tokens,_`` to ``{"x": ["batch", "tokens", None]}``.

    Raises:
        UsageError: An entry of another shape.
    """
    dims: dict[str, list[str | None]] = {}
    for entry in entries or ():
        name, separator, axes = entry.partition("=")
        if not separator or not axes:
            raise UsageError(f"`--dims` must look like x=batch,tokens,_ , got {entry!r}.")
        dims[name] = [None if axis in ("_", "") else axis for axis in axes.split(",")]
    return dims or None


def parse_lengths(text: str | None, flag: str) -> list[int] | None:
    """``1,2,33`` to ``[1, 2, 33]``.

    Raises:
        UsageError: Not numbers >= 1 with commas between; the message names `flag`.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise UsageError(
            f"`{flag}` must be lengths >= 1 with commas between, like 16,32 , got {text!r}."
        )
    return [int(part) for part in parts]
