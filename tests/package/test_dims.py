"""`DimExpression`: what is read, what it comes to, and how it depends on a name."""

from __future__ import annotations

import pytest

from causal_attn.package.dims import DimExpression


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("tokens", 3),
        ("7", 7),
        ("past + tokens", 7),
        ("tokens+past", 7),
        ("2*tokens", 6),
        ("(past + tokens)//2 - 1", 2),
        ("past - tokens * 1", 1),
        (" past + tokens ", 7),
    ],
)
def test_expressions_have_a_size(text: str, size: int) -> None:
    assert DimExpression.parse(text).size({"past": 4, "tokens": 3}) == size


@pytest.mark.parametrize(
    "text",
    ["tokens", "past.0", "floor(n/2)", "n / 2", "__import__('os') + n", "n +", "", "n[0] + 1",
     "1 + True", "1.5 + n", "+".join("n" * 300), "(" * 150 + "n", "n\0 + 1", "n ** 2", "-n",
     "n <= 512"],
)  # fmt: skip
def test_what_is_no_expression_is_a_name(text: str) -> None:
    expression = DimExpression.parse(text)
    assert expression.is_name
    assert expression.size({text: 5, "n": 2}) == 5
    assert expression.size({"n": 2}) is None
    assert expression.factor(text) == 1
    assert expression.is_sum_of(text)


@pytest.mark.parametrize("text", ["past + tokens", "4 // (past - past)", "tokens // zero"])
def test_there_may_be_no_size(text: str) -> None:
    assert DimExpression.parse(text).size({"past": 4, "zero": 0}) is None


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("tokens", 1),
        ("past + tokens", 1),
        ("tokens + 1", 1),
        ("2*tokens", 2),
        ("tokens*2 + tokens - 3", 3),
        ("(tokens + past)*2 - tokens", 1),
        ("past - tokens", -1),
        ("tokens - tokens", 0),
        ("past", 0),
        ("heads*past", 0),
        ("8", 0),
        ("heads*tokens", None),
        ("tokens*tokens", None),
        ("tokens//2", None),
    ],
)
def test_how_a_size_follows_the_tokens(text: str, factor: int | None) -> None:
    assert DimExpression.parse(text).factor("tokens") == factor


def test_sums_are_known_in_any_order() -> None:
    for text in ("past + tokens", "tokens+past", "past + 2*tokens - tokens"):
        assert DimExpression.parse(text).is_sum_of("tokens", "past"), text
    for text in ("past + tokens + 1", "past", "past*tokens", "2*past + tokens", "past + other"):
        assert not DimExpression.parse(text).is_sum_of("tokens", "past"), text


def test_names_are_exchanged_at_once() -> None:
    swapped = DimExpression.parse("a + 2*b - ab").renamed({"a": "b", "b": "a"})
    assert swapped.text == "b + 2*a - ab"
    assert swapped.names == {"a", "b", "ab"}
    assert DimExpression.parse("past.0").renamed({"past": "x", "past.0": "y"}).text == "y"
