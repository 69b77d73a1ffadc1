"""`Contract`: its JSON comes back equal, and each malformed field is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_strategies import specs

from causal_attn.attention.spec import CacheKind
from causal_attn.errors import PackageError
from causal_attn.package.contract import DTYPES, SCHEMA, Contract, TensorContract

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
figures = st.dictionaries(
    text,
    text | st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False, allow_infinity=False),
)


def tensors() -> st.SearchStrategy[tuple[TensorContract, ...]]:
    one = st.builds(
        TensorContract,
        name=text,
        dtype=st.sampled_from(DTYPES),
        dims=st.lists(text | st.integers(0, (1 << 63) - 1), max_size=5).map(tuple),
    )
    many = st.lists(one, min_size=1, max_size=4, unique_by=lambda tensor: tensor.name)
    return many.map(tuple)


contracts = st.builds(
    Contract,
    inputs=tensors(),
    outputs=tensors(),
    form=text,
    opset=st.integers(1, 30),
    # A spec with a cache needs a layout, and a layout needs tensors to fit.
    spec=st.none() | specs().map(lambda spec: replace(spec, cache=CacheKind.NONE)),
    tokens=text,
    choice=figures,
)

CONTRACT = Contract(
    inputs=(TensorContract(name="q", dtype="float16", dims=("batch", 8, "past_tokens + tokens")),),
    outputs=(TensorContract(name="output", dtype="float32", dims=()),),
    form="decomposed",
    opset=18,
)


@given(contracts)
def test_round_trip(contract: Contract) -> None:
    written = contract.to_json()
    assert Contract.from_json(written) == contract
    assert Contract.from_json(written).to_json() == written


def edited(path: tuple[Any, ...], value: Any) -> str:
    values = inside = json.loads(CONTRACT.to_json())
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(values)


TENSOR = {"name": "q", "dtype": "float32", "dims": [1]}


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        (("schema",), [None, 1, "causal_attn.contract/2", [SCHEMA]], "JSON object with schema"),
        (("extra",), [1], "exactly the fields"),
        (("inputs",), [None, {}, [], "q", 1], "`inputs` must be a non-empty list"),
        (("outputs",), [None, {}, [], "q", 1], "`outputs` must be a non-empty list"),
        (("inputs",), [[TENSOR, TENSOR]], "`inputs` must have distinct names"),
        (
            ("outputs", 0),
            [None, [], "q", {}, TENSOR | {"x": 1}],
            r"`outputs\[0\]` must have name, dtype and dims",
        ),
        (("inputs", 0, "name"), [None, 1, "", []], r"`inputs\[0\].name` must be a non-empty"),
        (("inputs", 0, "dtype"), [None, 1, "float", "F32", []], r"`inputs\[0\].dtype` must be"),
        (
            ("inputs", 0, "dims"),
            [None, 3, "tokens", {}, [""], [-1], [True], [1.0], [None], [[]], [1 << 63]],
            r"`inputs\[0\].dims` must be a list of names and sizes",
        ),
        (("form",), [None, 1, "", []], "`form` must be a non-empty string"),
        (("tokens",), [None, 1, "", []], "`tokens` must be a non-empty string"),
        (("opset",), [None, True, "18", 18.0, 0, -1, 10**9, []], "`opset` must be an integer"),
        (("choice",), [None, 1, [], "x"], "`choice` must be an object"),
        (
            ("onnxruntime",),
            [None, 1.31, "", "1", "1.31.0", ">=1.31", "1.31\n", "\u0661.3", [1, 31]],
            "`onnxruntime` must be the oldest release",
        ),
        (
            ("spec",),
            [1, [], "x", {"x": 1}, {"scale": -1}, {"cache": 1}],
            "contract's spec is wrong",
        ),
    ],
)
def test_each_malformed_field_is_refused(
    path: tuple[Any, ...], values: list[Any], message: str
) -> None:
    for value in values:
        with pytest.raises(PackageError, match=message):
            Contract.from_json(edited(path, value))


@pytest.mark.parametrize("name", list(json.loads(CONTRACT.to_json())))
def test_a_missing_field_is_refused(name: str) -> None:
    values = json.loads(CONTRACT.to_json())
    del values[name]
    with pytest.raises(PackageError, match="schema" if name == "schema" else "exactly the fields"):
        Contract.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "[" * 100_000, "NaN"])
def test_text_that_is_no_contract_is_refused(text: str) -> None:
    with pytest.raises(PackageError, match="The contract must"):
        Contract.from_json(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), b"x"])
def test_what_is_no_json_is_not_written(value: Any) -> None:
    contract = Contract(
        inputs=CONTRACT.inputs, outputs=CONTRACT.outputs, form="x", opset=18, choice={"x": value}
    )
    with pytest.raises(PackageError, match="must hold JSON values"):
        contract.to_json()
