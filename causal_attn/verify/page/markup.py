"""HTML in which text is escaped unless it was built here, and names from a model stay readable.

A model names its nodes as it likes: with markup, ten thousand characters, or characters that
reverse the line. `tag` escapes every part that is not `Markup`, so that forgetting to escape is
not possible, and `visible` writes out what would not be seen.
"""

from __future__ import annotations

import html

__all__ = ["Markup", "code", "foldable", "middle", "prose", "tag", "visible"]

MOST_KEPT = 20_000
"""Characters of one text that enter a page at all; a name in a model can have 2 GB."""

_VOID = {"img", "meta"}


class Markup(str):
    """Text that is HTML already; only functions of this module and constants make it."""

    __slots__ = ()


def tag(name: str, /, *parts: str, **attributes: str | int | None) -> Markup:
    """An element.

    Args:
        name: Its name.
        parts: What is in it; escaped where it is not `Markup`.
        attributes: ``class_`` gives ``class`` and ``aria_label`` gives ``aria-label``; ``None``
            leaves one out.
    """
    opening = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{opening}>")
    inner = "".join(part if isinstance(part, Markup) else html.escape(part) for part in parts)
    return Markup(f"<{opening}>{inner}</{name}>")


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


def code(name: str, *, most: int = 80) -> Markup:
    """A name on one line; a long one loses its middle and has the whole as its title."""
    return _short("code", visible(middle(name, MOST_KEPT)), most)


def prose(text: str, *, most: int = 400) -> Markup:
    """A sentence inside a line; a long one loses its middle and has the whole as its title."""
    return _short("span", visible(middle(text, MOST_KEPT), keep="\n"), most)


def foldable(text: str, *, most: int, element: str = "span") -> Markup:
    """As `prose`, in ``element``, but the whole text unfolds below the short one.

    Not for use inside a paragraph or a heading, where HTML allows no block.
    """
    whole = visible(middle(text, MOST_KEPT), keep="\n" if element == "span" else "")
    if len(whole) <= most:
        return tag(element, _breakable(whole))
    short = tag("summary", tag(element, _breakable(middle(whole, most))))
    return tag("details", short, tag("div", tag(element, whole), class_="whole"))


def _short(element: str, whole: str, most: int) -> Markup:
    short = middle(whole, most)
    return tag(element, _breakable(short), title=whole if short != whole else None)


def _breakable(text: str) -> Markup:
    """Names of nodes are paths: a line may end after a slash, but need not."""
    return Markup(html.escape(text).replace("/", "/<wbr>"))
