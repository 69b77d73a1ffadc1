"""`Certificate`: what counts as passed, its JSON, and each malformed field refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_contract import figures, text

from causal_attn.errors import PackageError
from causal_attn.package.certificate import SCHEMA, Certificate, Check, Verdict

checks = st.builds(
    Check,
    name=text,
    passed=st.sampled_from([True, False, None]),
    detail=text,
    figures=figures,
    provider=text | st.just(""),
)
certificates = st.builds(
    Certificate,
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    verdict=st.sampled_from(Verdict),
    checks=st.lists(checks, max_size=3).map(tuple),
    score_bound=st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    versions=st.dictionaries(text, text, max_size=3),
)

PASSED = Check(name="parity", passed=True, detail="Within the budget.", figures={"error": 1e-7})
CERTIFICATE = Certificate(digest="ab" * 32, verdict=Verdict.CAUSAL, checks=(PASSED,))


@given(certificates)
def test_round_trip(certificate: Certificate) -> None:
    written = certificate.to_json()
    assert Certificate.from_json(written) == certificate
    assert Certificate.from_json(written).to_json() == written
    assert Certificate.from_json(written).passed == certificate.passed


@pytest.mark.parametrize(
    ("certificate", "passed"),
    [
        (CERTIFICATE, True),
        (replace(CERTIFICATE, checks=()), False),
        (replace(CERTIFICATE, checks=(PASSED, replace(PASSED, passed=False))), False),
        (replace(CERTIFICATE, checks=(PASSED, replace(PASSED, passed=None))), False),
        (replace(CERTIFICATE, verdict=Verdict.NOT_CAUSAL), False),
        (replace(CERTIFICATE, verdict=Verdict.UNDECIDED), False),
        (replace(CERTIFICATE, verdict=Verdict.CONDITIONAL), False),
        (replace(CERTIFICATE, verdict=Verdict.CONDITIONAL, score_bound=1e4), True),
        (replace(CERTIFICATE, verdict=Verdict.NOT_CAUSAL, score_bound=1e4), False),
    ],
)
def test_passed(certificate: Certificate, passed: bool) -> None:
    assert certificate.passed is passed


def test_a_failure_can_be_recorded_whatever_its_figures_are() -> None:
    figures = MappingProxyType({"error": math.nan, "all": [1.5, math.inf, {"low": -math.inf}]})
    failed = replace(PASSED, passed=False, figures=figures)
    read = Certificate.from_json(replace(CERTIFICATE, checks=(failed,)).to_json())
    assert read.checks[0].figures == {"error": "nan", "all": [1.5, "inf", {"low": "-inf"}]}


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x"])
def test_what_is_no_json_is_not_written(value: Any) -> None:
    certificate = replace(CERTIFICATE, checks=(replace(PASSED, figures={"x": value}),))
    with pytest.raises(PackageError, match="must hold JSON values"):
        certificate.to_json()


def edited(path: tuple[Any, ...], value: Any) -> str:
    values = inside = json.loads(CERTIFICATE.to_json())
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(values)


CHECK_MESSAGE = r"`checks\[0\]` must have name, passed, detail, figures and provider"


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        (("schema",), [None, 1, "causal_attn.certificate/2", [SCHEMA]], "object with schema"),
        (("extra",), [1], "exactly the fields"),
        (
            ("digest",),
            [None, 1, "", "ab", "AB" * 32, "ab" * 33, "xy" * 32, "ab" * 32 + "\n", []],
            "`digest` must be 64 hex digits",
        ),
        (("verdict",), [None, True, "", "CAUSAL", "fine", []], "`verdict` must be one of"),
        (
            ("score_bound",),
            [True, "1", [], 0, -1.0, 10**400],
            "`score_bound` must be a finite number > 0 or null",
        ),
        (("versions",), [None, 1, [], "x", {"torch": 2}], "`versions` must be an object of"),
        (("checks",), [None, 1, {}, "x"], "`checks` must be a list"),
        (("checks", 0), [None, 1, [], "x", {}], CHECK_MESSAGE),
        (("checks", 0, "extra"), [1], CHECK_MESSAGE),
        (("checks", 0, "passed"), [1, 0, 1.0, 0.0, "true", [], {}], CHECK_MESSAGE),
        (("checks", 0, "name"), [None, 1, []], CHECK_MESSAGE),
        (("checks", 0, "detail"), [None, 1, []], CHECK_MESSAGE),
        (("checks", 0, "provider"), [None, 1, []], CHECK_MESSAGE),
        (("checks", 0, "figures"), [None, 1, [], "x"], CHECK_MESSAGE),
    ],
)
def test_each_malformed_field_is_refused(
    path: tuple[Any, ...], values: list[Any], message: str
) -> None:
    for value in values:
        with pytest.raises(PackageError, match=message):
            Certificate.from_json(edited(path, value))


@pytest.mark.parametrize("name", list(json.loads(CERTIFICATE.to_json())))
def test_a_missing_field_is_refused(name: str) -> None:
    values = json.loads(CERTIFICATE.to_json())
    del values[name]
    with pytest.raises(PackageError, match="schema" if name == "schema" else "exactly the fields"):
        Certificate.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "[" * 100_000, "NaN"])
def test_text_that_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(PackageError, match="The certificate must"):
        Certificate.from_json(text)
