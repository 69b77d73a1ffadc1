"""`AttentionSpec`: what it takes, what it refuses, and its JSON."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from spec_strategies import specs

from causal_attn.attention.spec import AttentionSpec, CacheKind, require_positive
from causal_attn.errors import SpecError


@given(specs())
def test_round_trip(spec: AttentionSpec) -> None:
    assert AttentionSpec.from_json(spec.to_json()) == spec
    assert AttentionSpec.from_dict(spec.to_dict()) == spec
    assert hash(AttentionSpec.from_json(spec.to_json())) == hash(spec)


def test_every_field_is_written() -> None:
    assert set(AttentionSpec().to_dict()) == {field.name for field in fields(AttentionSpec)}


def test_an_empty_object_is_the_default() -> None:
    assert AttentionSpec.from_json("{}") == AttentionSpec()


def test_cache_by_name_is_the_member() -> None:
    assert AttentionSpec(cache="static").cache is CacheKind.STATIC  # type: ignore[arg-type]


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        AttentionSpec().window = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["num_heads", "num_kv_heads", "head_dim", "window"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", [1], {}, math.nan])
def test_sizes_are_positive_integers(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"`{name}` must be an integer >= 1 or None, got"):
        AttentionSpec(**{name: value})


@pytest.mark.parametrize("name", ["scale", "softcap"])
@pytest.mark.parametrize(
    "value", [0, 0.0, -0.0, -1, math.inf, -math.inf, math.nan, True, "1", [1.0], 10**400]
)
def test_factors_are_positive_numbers(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"`{name}` must be a finite number > 0 or None, got"):
        AttentionSpec(**{name: value})
    with pytest.raises(SpecError, match="`other` must be"):
        require_positive("other", value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_kv_heads": 2}, "must come with `num_heads`, got 2 without"),
        ({"num_heads": 6, "num_kv_heads": 4}, "must divide `num_heads`, got 4 for 6"),
        ({"num_heads": 2, "num_kv_heads": 4}, "must divide `num_heads`, got 4 for 2"),
        ({"cache": "paged"}, r"one of \['none', 'dynamic', 'static'\], got 'paged'"),
        ({"cache": None}, "`cache` must be one of"),
        ({"cache": []}, "`cache` must be one of"),
        ({"heads": 2}, r"only the fields \['cache', .*\], got \['heads'\]"),
        ([], "must be a JSON object, got list"),
        (None, "must be a JSON object, got NoneType"),
    ],
)
def test_refused_values(values: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        AttentionSpec.from_dict(values)
    with pytest.raises(SpecError, match=message):
        AttentionSpec.from_json(json.dumps(values))


def test_fields_that_are_no_strings_are_refused() -> None:
    with pytest.raises(SpecError, match="must have only the fields"):
        AttentionSpec.from_dict({1: 2, "x": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nul",
        '{"scale": NaN}',
        '{"scale": 1e999}',
        '{"scale": 1, "scale": 2}',
        "[" * 100_000,
        '{"scale": ' + "[" * 500 + "]" * 500 + "}",
    ],
    ids=lambda text: text[:12],
)
def test_refused_text(text: str) -> None:
    with pytest.raises(SpecError, match="`text` must") as caught:
        AttentionSpec.from_json(text)
    assert len(str(caught.value)) < 300
