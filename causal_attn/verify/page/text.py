"""Text from a model made readable: a model names its nodes as it likes.

A name can be markup, have ten thousand characters, or characters that reverse the line. The
templates escape the first; `visible` and `middle` see to the others.
"""

from __future__ import annotations

__all__ = ["MOST_KEPT", "middle", "visible", "whole"]

MOST_KEPT = 20_000
"""Characters of one text that enter a page at all; a name in a model can have 2 GB."""


def visible(text: str, *, keep: str = "") -> str:
    """`text` with every character that prints nothing, or reorders others, written as an escape.

    Lone surrogates go the same way: no encoding could carry them.

    Args:
        text: Anything.
        keep: Characters to leave as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def middle(text: str, most: int) -> str:
    """`text`, or its two ends with the number of characters that are missing between them."""
    if len(text) <= most:
        return text
    head = (most + 1) // 2
    return f"{text[:head]}…[{len(text) - most:,} characters]…{text[len(text) - most // 2 :]}"


def whole(text: str, *, keep: str = "") -> str:
    """All of `text` that a page holds, visible."""
    return visible(middle(text, MOST_KEPT), keep=keep)
