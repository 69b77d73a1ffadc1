"""JSON from untrusted files: one meaning or a refusal, within fixed bounds.

The standard parser keeps the last of two equal keys, reads ``NaN`` and ``1e999``, and lets text
through that no file name or terminal can carry. Two readers of one file must not see two
different things, so all of that is refused here.
"""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any

from causal_attn.errors import PackageError

__all__ = ["MAX_DEPTH", "MAX_JSON_BYTES", "parse_json", "shown"]

MAX_JSON_BYTES = 4 << 20
"""A manifest, contract or certificate is a few kilobytes; onnx model packages cap it here too."""

MAX_DEPTH = 64
"""Levels of nesting; far below where `repr` or `json.dumps` of the value would overflow."""


def parse_json(text: str, what: str) -> Any:
    """The value that `text` says.

    Args:
        text: The JSON document.
        what: Its name in messages, such as ``the contract``.

    Raises:
        PackageError: `text` is too long, not JSON, nested too deeply, repeats a key, or has a
            number or a string that other readers would not read alike.
    """
    if len(text) > MAX_JSON_BYTES:
        raise PackageError(f"{what} must be at most {MAX_JSON_BYTES} bytes, got {len(text)}.")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise PackageError(f"{what} must nest at most {MAX_DEPTH} levels, got more.") from None
    except ValueError as error:
        raise PackageError(f"{what} must be JSON, got: {error}.") from None
    _check_bounds(value, what)
    return value


def shown(value: object) -> str:
    """`value` as an error message shows it: a short `repr`, however large the value is."""
    return reprlib.repr(value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {shown(name)} twice in one object")
            seen.add(name)
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name}, which is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)}, which is beyond a float64")
    return value


def _check_bounds(value: Any, what: str) -> None:
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise PackageError(f"{what} must nest at most {MAX_DEPTH} levels, got more.")
        if isinstance(item, dict):
            pending.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, list):
            pending.extend((part, depth + 1) for part in item)
        elif isinstance(item, str) and not item.isascii():
            # A lone surrogate parses, and then fails wherever the string is encoded.
            try:
                item.encode()
            except UnicodeEncodeError:
                raise PackageError(f"{what} must be Unicode text, got {shown(item)}.") from None
