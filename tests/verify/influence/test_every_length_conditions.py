"""Conditions on whole numbers: what is called impossible is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from causal_attn.verify.influence.every.affine import (
    FALSE,
    TRUE,
    Affine,
    AtMost,
    Condition,
    Every,
    Some,
    Undecidable,
    equal,
    impossible,
    less,
    negated,
    settled,
)

NAMES = "abc"
BOX = range(-4, 5)


def made(random: np.random.Generator, depth: int) -> Condition:
    """A condition over three variables, with coefficients that make rounding matter."""
    if depth and random.random() < 0.6:
        parts = tuple(made(random, depth - 1) for _ in range(random.integers(1, 4)))
        return Every(parts) if random.random() < 0.5 else Some(parts)
    counts = random.integers(-3, 4, len(NAMES))
    terms = tuple((n, int(c)) for n, c in zip(NAMES, counts, strict=True) if c)
    return AtMost(Affine(int(random.integers(-6, 7)), terms))


def true(condition: Condition, values: Mapping[str, int]) -> bool:
    if isinstance(condition, AtMost):
        affine = condition.affine
        return affine.constant + sum(n * values[name] for name, n in affine.terms) <= 0
    found = [true(part, values) for part in condition.parts]
    return all(found) if isinstance(condition, Every) else any(found)


def test_what_is_called_impossible_has_no_solution() -> None:
    random = np.random.default_rng(0)
    inside = [
        AtMost(side)
        for name in NAMES
        for side in (Affine(-4, ((name, 1),)), Affine(-4, ((name, -1),)))
    ]
    places = [dict(zip(NAMES, at, strict=True)) for at in product(BOX, repeat=3)]
    called, missed = 0, 0
    for _ in range(150):
        conditions = [made(random, 2) for _ in range(3)]
        solved = any(all(true(c, at) for c in conditions) for at in places)
        found = impossible([*inside, *conditions])
        assert not (found and solved)
        called, missed = called + found, missed + (not found and not solved)
    assert called > 30
    assert missed <= 3


def test_negation_and_settling_keep_the_meaning() -> None:
    random = np.random.default_rng(1)
    for _ in range(60):
        condition = made(random, 3)
        for at in product((-2, 0, 3), repeat=3):
            values = dict(zip(NAMES, at, strict=True))
            assert true(negated(condition), values) is not true(condition, values)
            assert true(settled(condition), values) is true(condition, values)


def test_whole_numbers_are_not_fractions() -> None:
    a, b = Affine.of("a"), Affine.of("b")
    assert impossible([equal(a.times(2), Affine(3))])
    assert impossible([equal(a.times(2), b.times(2) + 1)])
    assert not impossible([equal(a.times(2), b.times(3) + 1)])
    assert impossible([less(a, b), less(b, a + 1)])
    assert impossible([FALSE])
    assert not impossible([TRUE])


def test_too_many_cases_are_left_open() -> None:
    names = [Affine.of(f"x{at}") for at in range(14)]
    choices = [Some((equal(x, Affine()), equal(x, Affine(3)))) for x in names]
    total = Affine()
    for x in names:
        total = total + x
    with pytest.raises(Undecidable):
        impossible([*choices, equal(total, Affine(1))])
