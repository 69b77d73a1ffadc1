"""The fields of our JSON files: written in one way, and each read as what it must be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from causal_attn.errors import PackageError
from causal_attn.json_text import parse_json, shown

__all__ = ["as_integer", "as_name", "read_fields", "refusal", "write_fields"]


def write_fields(values: Mapping[str, Any], what: str) -> str:
    """Indented JSON with sorted keys.

    Args:
        values: The fields, ``schema`` among them.
        what: The file's name in messages, such as ``The contract``.

    Raises:
        PackageError: One of them is not a JSON value.
    """
    try:
        return json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise PackageError(f"{what} must hold JSON values, got: {error}.") from None


def read_fields(
    text: str, what: str, schema: str, known: Set[str], optional: Set[str] = frozenset()
) -> dict[str, Any]:
    """The fields that `write_fields` wrote, without ``schema``.

    Args:
        text: The JSON document.
        what: The file's name in messages, such as ``The contract``.
        schema: What its ``schema`` must be.
        known: The other fields, all of which it must have.
        optional: Those it may have besides.

    Raises:
        PackageError: `text` is not JSON, of another schema, or has other fields.
    """
    values = parse_json(text, what)
    if not isinstance(values, dict) or values.pop("schema", None) != schema:
        raise PackageError(
            f"{what} must be a JSON object with schema {schema!r}, got {shown(values)}. "
            "Export the model again with this version, or use the version that wrote it."
        )
    if set(values) - optional != known:
        raise PackageError(
            f"{what} must have exactly the fields {sorted(known)}, got {shown(sorted(values))}."
        )
    return values


def as_name(where: str, value: Any) -> str:
    """`value`, a string that is not empty.

    Raises:
        PackageError: It is none; the message calls it `where`.
    """
    if not isinstance(value, str) or not value:
        raise refusal(where, "be a non-empty string", value)
    return value


def as_integer(where: str, value: Any, least: int, most: int) -> int:
    """`value`, an integer from `least` to `most`; true and false are none.

    Raises:
        PackageError: It is none; the message calls it `where`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise refusal(where, f"be an integer from {least} to {most}", value)
    return value


def refusal(where: str, must: str, value: object) -> PackageError:
    """The error that says what the field `where` must be or have, and what came."""
    return PackageError(f"`{where}` must {must}, got {shown(value)}.")
