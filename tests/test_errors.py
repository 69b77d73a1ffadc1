"""The error tree is the one drawn in its module's docstring, with the exit codes it promises."""

from __future__ import annotations

import builtins
import inspect
import re

import pytest

from causal_attn import errors
from causal_attn.errors import CausalAttnError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, CausalAttnError)
}


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Class name -> (parent, builtin in parentheses), as the docstring's tree has them."""
    assert errors.__doc__ is not None
    tree: dict[str, tuple[str | None, str | None]] = {}
    open_parents: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"([ │├└─]*)([A-Z]\w+Error)(?: \((\w+)\))?", line)
        if match is None or not match[1]:
            continue
        depth = len(match[1])
        while open_parents and open_parents[-1][0] >= depth:
            open_parents.pop()
        tree[match[2]] = (open_parents[-1][1] if open_parents else None, match[3])
        open_parents.append((depth, match[2]))
    return tree


def test_the_drawing_names_exactly_the_classes_there_are() -> None:
    assert set(drawn()) == set(CLASSES) == set(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_parents_are_as_drawn(name: str) -> None:
    parent, builtin = drawn()[name]
    bases = {base.__name__ for base in CLASSES[name].__bases__}
    assert bases == ({parent or "Exception"} | ({builtin} if builtin else set()))
    if builtin is not None:
        assert issubclass(CLASSES[name], getattr(builtins, builtin))


def test_exit_codes() -> None:
    codes = {name: cls.exit_code for name, cls in CLASSES.items()}
    failed = {name for name, code in codes.items() if code == 1}
    assert failed == {"CheckError", "CertificateError"}
    assert {codes[name] for name in set(codes) - failed} == {2}


@pytest.mark.parametrize("name", errors.__all__)
def test_each_says_what_it_means_and_keeps_its_message(name: str) -> None:
    assert CLASSES[name].__doc__
    assert str(CLASSES[name]("`x` must be y, got z.")) == "`x` must be y, got z."
