"""`CacheLayout`: every kind of cache can be said, comes back equal, and must fit the tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from causal_attn import AttentionSpec
from causal_attn.attention.spec import CacheKind
from causal_attn.errors import PackageError
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import Contract, TensorContract


def tensor(name: str, *dims: str | int, dtype: str = "float32") -> TensorContract:
    return TensorContract(name=name, dtype=dtype, dims=dims)


LAYERS = [(f"past_key_values.{n}.{part}", f"present.{n}.{part}") for n in (0, 1) for part in
          ("key", "value")]  # fmt: skip
IDS = tensor("input_ids", "batch", "tokens", dtype="int64")
LOGITS = tensor("logits", "batch", "tokens", 64)


def decoder(kind: EntryKind) -> Contract:
    """A decoder of two layers, with a cache that grows or one of fixed capacity."""
    fixed = kind is EntryKind.FIXED
    before, after = ("slots", "slots") if fixed else ("past", "past + tokens")
    lengths = [tensor("filled", "batch", dtype="int32")] if fixed else []
    return Contract(
        inputs=(IDS, *lengths, *(tensor(name, "batch", 2, before, 8) for name, _ in LAYERS)),
        outputs=(LOGITS, *(tensor(name, "batch", 2, after, 8) for _, name in LAYERS)),
        cache=CacheLayout(
            entries=tuple(
                CacheEntry(input=past, output=present, kind=kind, axis=2)
                for past, present in LAYERS
            ),
            lengths="filled" if fixed else None,
            capacity="slots" if fixed else None,
            in_place=fixed,
        ),
        form="captured",
        opset=18,
    )


def mixed() -> Contract:
    """A state of a convolution, an encoder's keys that are only read, and a cache that grows."""
    return Contract(
        inputs=(
            IDS,
            tensor("columns", "batch", 16, 3),
            tensor("encoder_key", "batch", 2, "source", 8),
            tensor("past", "past", "batch", 8),
        ),
        outputs=(
            LOGITS,
            tensor("next_columns", "batch", 16, 3),
            tensor("present", "past + tokens", "batch", 8),
        ),
        cache=CacheLayout(
            entries=(
                CacheEntry(input="columns", output="next_columns", kind=EntryKind.REPLACED),
                CacheEntry(input="encoder_key", output=None, kind=EntryKind.READ, axis=2),
                CacheEntry(input="past", output="present", kind=EntryKind.GROWING, axis=0),
            ),
            in_place=True,
        ),
        form="captured",
        opset=18,
    )


CONTRACTS = [decoder(EntryKind.GROWING), decoder(EntryKind.FIXED), mixed()]


@pytest.mark.parametrize("contract", CONTRACTS, ids=["growing", "fixed", "mixed"])
def test_a_layout_comes_back_equal(contract: Contract) -> None:
    written = contract.to_json()
    assert Contract.from_json(written) == contract
    assert json.loads(written)["cache"]["entries"][0]["input"] in {
        tensor.name for tensor in contract.inputs
    }


def test_what_may_share_memory() -> None:
    growing, fixed, mixture = (contract.cache for contract in CONTRACTS)
    assert growing is not None
    assert fixed is not None
    assert mixture is not None
    assert growing.shared == {}
    assert fixed.shared == {present: past for past, present in LAYERS}
    assert replace(fixed, in_place=False).shared == {}
    assert mixture.shared == {"next_columns": "columns"}
    assert mixture.pairs == {"columns": "next_columns", "past": "present"}


def edited(contract: Contract, path: tuple[Any, ...], value: Any) -> str:
    values = inside = json.loads(contract.to_json())
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(values)


ENTRY = {"input": "columns", "output": "next_columns", "kind": "replaced", "axis": None}


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ((), [1, [], "x", {}, {"entries": []}], "`cache` must be null or have entries"),
        (("entries",), [None, {}, "x", 1], "`cache.entries` must be a list"),
        (("entries",), [[]], "`cache.entries` must have at least one entry"),
        (("entries", 0), [None, [], {}, ENTRY | {"x": 1}], r"`cache.entries\[0\]` must have inp"),
        (("entries", 0, "input"), [None, 1, ""], r"entries\[0\].input` must be a non-empty"),
        (("entries", 0, "output"), [1, ""], r"entries\[0\].output` must be a non-empty string"),
        (("entries", 0, "kind"), [None, 1, "grow", []], r"entries\[0\].kind` must be one of"),
        (("entries", 2, "axis"), [True, 1.0, "0", -1], r"`cache.entries\[2\].axis` must be null"),
        (("lengths",), [1, "", []], "`cache.lengths` must be a non-empty string"),
        (("capacity",), [1, "", []], "`cache.capacity` must be a non-empty string"),
        (("in_place",), [None, 1, "x"], "`cache.in_place` must be true or false"),
        # What follows is well-formed, and contradicts the tensors.
        (("entries", 0, "input"), ["none"], r"`cache.entries\[0\].input` must be an input"),
        (("entries", 0, "input"), ["past"], "must have distinct inputs"),
        (("entries", 0, "output"), ["none", None], r"entries\[0\].output` must be an output"),
        (("entries", 0, "output"), ["present"], "must have distinct outputs"),
        (("entries", 0, "output"), ["logits"], "of the same dims for kind 'replaced'"),
        (("entries", 0, "axis"), [1], r"`cache.entries\[0\].axis` must be null for kind 'repl"),
        (("entries", 0), [ENTRY | {"kind": "growing"}], "must be the axis of tokens of 'colum"),
        (("entries", 1, "axis"), [4], "must be an axis of 'encoder_key', 0 to 3, got 4"),
        (("entries", 1, "output"), ["logits"], "must be null for kind 'read'"),
        (("entries", 2, "axis"), [3], "must be an axis of 'past', 0 to 2, got 3"),
        (("lengths",), ["input_ids", "none"], r"`cache.lengths` must be an input \[batch\]"),
        (("capacity",), ["past"], "`cache.capacity` must be null without fixed entries"),
    ],
)
def test_each_wrong_field_is_refused(
    path: tuple[Any, ...], values: list[Any], message: str
) -> None:
    for value in values:
        with pytest.raises(PackageError, match=message):
            Contract.from_json(edited(mixed(), ("cache", *path), value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("cache", "capacity"), "tokens", "`cache.capacity` must be the dim of 'past_key_values"),
        (("cache", "capacity"), None, "`cache.capacity` must be the dim of 'past_key_values"),
        (("inputs", 1, "dtype"), "float32", r"`cache.lengths` must be an input \[batch\] of int"),
        (("inputs", 1, "dims"), ["other"], "one length a sequence of every fixed entry"),
        (("inputs", 1, "dims"), ["slots"], "one length a sequence of every fixed entry"),
        (("inputs", 0, "dims"), ["batch", 1], "an input that has the dim 'tokens'"),
        (("inputs", 2, "dtype"), "float16", "tensors of one dtype and rank"),
        (("outputs", 1, "dims"), ["batch", 2, "slots"], "tensors of one dtype and rank"),
        (("outputs", 1, "dims"), ["batch", 2, "more", 8], "the same dims for kind 'fixed'"),
    ],
)
def test_a_fixed_cache_is_held_to_its_tensors(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(PackageError, match=message):
        Contract.from_json(edited(decoder(EntryKind.FIXED), path, value))


def test_a_cache_that_grows_is_not_written_in_place() -> None:
    with pytest.raises(PackageError, match=r"`cache\.in_place` must be false without fixed"):
        Contract.from_json(edited(decoder(EntryKind.GROWING), ("cache", "in_place"), True))


@pytest.mark.parametrize("kind", [CacheKind.DYNAMIC, CacheKind.STATIC])
def test_a_spec_with_a_cache_needs_its_layout(kind: CacheKind) -> None:
    other = {CacheKind.DYNAMIC: EntryKind.FIXED, CacheKind.STATIC: EntryKind.GROWING}[kind]
    spec = AttentionSpec(cache=kind)
    for contract in (decoder(other), replace(decoder(other), cache=None)):
        text = edited(contract, ("spec",), spec.to_dict())
        with pytest.raises(PackageError, match="`cache` must have entries of kind"):
            Contract.from_json(text)
