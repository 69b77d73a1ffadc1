"""Stop strings: nothing of one is let through, and nothing else is held back at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal_attn.errors import UsageError
from causal_attn.runtime.generate.answer import Answer
from causal_attn.runtime.generate.lookup import guess
from causal_attn.runtime.generate.stops import Stops

TEXT = st.text("ab\n", max_size=12)


@given(st.lists(TEXT, max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_the_text_up_to_the_first_stop_comes_out(pieces: list[str], stops: list[str]) -> None:
    found = Stops(stops)
    shown = ""
    for piece in pieces:
        shown += found.add(piece)
        if found.hit:
            break
    shown += found.rest()
    whole = "".join(pieces)
    places = [place for stop in stops if (place := whole.find(stop)) >= 0]
    assert found.hit == bool(places)
    # A longer stop that began earlier may come after a shorter one ended: then the text is cut
    # at the one that was whole first.
    assert whole.startswith(shown)
    if not places:
        assert shown == whole
    elif len(stops) == 1:
        assert shown == whole[: places[0]]


class _Half:
    """A tokenizer whose tokens are the beginning of a character."""

    def pieces(self) -> _Half:
        return self

    def add(self, token: int) -> str:
        return ""

    def rest(self) -> str:
        return "\ufffd"


@pytest.mark.parametrize(
    ("stop", "text", "finish"), [("\ufffd", "", "stop"), ("x", "\ufffd", "length")]
)
def test_a_stop_in_what_is_left_at_the_end_ends_it(stop: str, text: str, finish: str) -> None:
    whole: Any = _Half()
    answer = Answer(text=whole, stops=Stops(stop), ends=frozenset(), limit=1, likeliest=None)
    token = answer.token(3, np.zeros(5, np.float32))
    assert (token.text, token.finish) == (text, finish)


@pytest.mark.parametrize("stops", [3, [""], [None], ["a", 4]])
def test_what_is_no_text_is_refused(stops: object) -> None:
    with pytest.raises(UsageError, match="`stop` must be texts"):
        Stops(stops)  # type: ignore[arg-type]


def test_a_guess_is_what_followed_the_same_end_last() -> None:
    assert guess([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert guess([1, 2, 5, 1, 2, 6, 1, 2], 1) == [6]
    assert guess([1, 2, 3], 4) == []
    assert guess([7], 4) == []
    assert guess([7, 7], 3) == [7]
