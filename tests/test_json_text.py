"""JSON from untrusted files is read within bounds that grow no faster than the file."""

from __future__ import annotations

import pytest

from causal_attn import json_text
from causal_attn.errors import PackageError
from causal_attn.json_text import parse_json


class Key(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("count", [1_000, 2_000])
def test_looking_for_a_key_that_comes_twice_takes_a_look_at_each(count: int) -> None:
    Key.compared = 0
    pairs = [(Key(f"key {n}"), n) for n in range(count)]
    with pytest.raises(ValueError, match=f"the key 'key {count - 1}' twice"):
        json_text._distinct([*pairs, (Key(f"key {count - 1}"), 0)])
    assert Key.compared <= 10 * count


def test_many_keys_of_which_one_comes_twice_are_refused() -> None:
    keys = ",".join(f'"{n}":0' for n in range(380_000))
    with pytest.raises(PackageError, match="the key '379999' twice in one object"):
        parse_json(f'{{{keys},"379999":0}}', "The contract")
