"""Stop strings: text is held back for as long as it may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence

from causal_attn.errors import UsageError
from causal_attn.json_text import shown

__all__ = ["Stops"]


class Stops:
    r"""Lets text through up to the first stop string, which is left out.

    ::

        stop = "\n\n"     in:  "a\n"   "b\n"      "\nc"
                          out: "a"     "\nb"      ""       and it is over

    Args:
        stops: One string or several, none of them empty.

    Attributes:
        strings: All of them.
        hit: Whether one of them came.

    Raises:
        UsageError: They are no such strings.
    """

    def __init__(self, stops: str | Sequence[str]) -> None:
        strings = [stops] if isinstance(stops, str) else stops
        if not isinstance(strings, list | tuple) or not all(
            isinstance(one, str) and one for one in strings
        ):
            raise UsageError(f"`stop` must be texts that are not empty, got {shown(stops)}.")
        self.strings = tuple(strings)
        self._held = ""
        self.hit = False

    def add(self, text: str) -> str:
        """What may be shown now that `text` came; nothing after a stop string."""
        if self.hit:
            return ""
        text = self._held + text
        found = [place for one in self.strings if (place := text.find(one)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)]
        kept = max((_overlap(text, one) for one in self.strings), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` begin `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
