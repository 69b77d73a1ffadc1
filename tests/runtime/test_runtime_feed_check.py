"""A feed that breaks the contract is refused in words; one that keeps it is read right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model
from runtime_cases import attention_bytes, attention_contract, contract_of, expected, fixed_cache

from causal_attn.errors import InputError
from causal_attn.machine.provider import Provider
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.runtime import Session, load
from causal_attn.runtime.feed_check import FeedCheck

Arrays = tuple[NDArray[np.float32], ...]

SIGNATURE = (
    "`q` float32[batch, heads, tokens, features], `k` float32[batch, heads, tokens, features], "
    "`v` float32[batch, heads, tokens, features]"
)


@pytest.fixture(params=["first call", "later call"])
def session(request: pytest.FixtureRequest, attention: Path, qkv: Arrays) -> Iterator[Session]:
    """A later call is one at shapes that were right before."""
    with load(attention) as opened:
        if request.param == "later call":
            opened(*qkv)
        yield opened


def refused(message: str) -> Any:
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def test_sizes_of_a_shared_dim_must_agree(session: Session, qkv: Arrays) -> None:
    q, _, v = qkv
    with refused("`k` must have tokens = 5 as `q` has, got 7."):
        session(q, np.zeros((2, 3, 7, 4), np.float32), v)
    with refused("`v` must have batch = 2 as `q` has, got 1."):
        session(q, q, v[:1])
    with refused("`v` must have heads = 3 as `q` has, got 1."):
        session.run({"q": q, "k": q, "v": v[:, :1]})


def test_names_must_be_those_of_the_contract(session: Session, qkv: Arrays) -> None:
    q, k, v = qkv
    with refused(f"The inputs must be {SIGNATURE}, got no 'v'."):
        session(q, k)
    with refused(f"The inputs must be {SIGNATURE}, got no 'k', 'v' and unknown 'key', 'value'."):
        session(q, key=k, value=v)
    with refused(f"The inputs must be {SIGNATURE}, got unknown 'mask'."):
        session.run({"q": q, "k": k, "v": v, "mask": v})
    with refused("`q` must be given once, got it by position and name."):
        session(q, k, q=q)
    with pytest.raises(InputError, match=r"at most the 3 inputs .* got 4 arrays\.$"):
        session(q, k, v, v)


def test_rank_must_be_that_of_the_contract(session: Session, qkv: Arrays) -> None:
    q, k, v = qkv
    with refused("`k` must have 4 dims [batch, heads, tokens, features], got 3: [3, 5, 4]."):
        session(q, k[0], v)
    with pytest.raises(InputError, match=r"`q` must have 4 dims .*, got 0: \[\]\.$"):
        session(np.array(1, np.float32), k, v)


def test_zero_tokens_are_refused(session: Session, qkv: Arrays) -> None:
    with refused(
        "`q` must have tokens = at least 1 in dim 2 of [batch, heads, tokens, features], got 0 in "
        "[2, 3, 0, 4]."
    ):
        session(*(array[:, :, :0] for array in qkv))
    with pytest.raises(InputError, match=r"batch = at least 1"):
        session(*(array[:0] for array in qkv))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "bool", "complex64"])
def test_dtypes_are_not_cast(session: Session, qkv: Arrays, dtype: str) -> None:
    q, k, v = qkv
    with refused(
        f"`k` must be float32, got {dtype}. Nothing is cast silently: convert it yourself, "
        "array.astype('float32')."
    ):
        session(q, k.astype(dtype), v)


def test_an_integer_mask_is_not_taken_for_a_boolean_one() -> None:
    check = FeedCheck(contract_of({"mask": ("bool", ("tokens",))}, {"y": ("bool", ("tokens",))}))
    with pytest.raises(InputError, match=r"`mask` must be bool, got int64\. Nothing is cast"):
        check.bind((np.array([0, 1]),), {})


def test_the_other_byte_order_is_refused(session: Session, qkv: Arrays) -> None:
    q, k, v = qkv
    swapped = k.astype(k.dtype.newbyteorder())
    with refused(
        f"`k` must be float32 in the byte order of this machine, got {swapped.dtype.str!r}. "
        "Convert it: array.astype('float32')."
    ):
        session(q, swapped, v)


class Tensorlike:
    def detach(self) -> None: ...


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1.0]], r"`k` must be a numpy array, got list\. Convert it: numpy\.asarray"),
        (np.float32(1), r"`k` must be a numpy array, got float32\."),
        (None, r"`k` must be a numpy array, got NoneType\."),
        (Tensorlike(), r"got Tensorlike\. Convert it: array\.detach\(\)\.cpu\(\)\.numpy\(\)\."),
        (np.ma.masked_array(np.ones(3)), r"got a MaskedArray, whose mask would be lost"),
    ],
)
def test_only_plain_arrays_are_taken(
    session: Session, qkv: Arrays, value: Any, message: str
) -> None:
    q, _, v = qkv
    with pytest.raises(InputError, match=message):
        session(q, value, v)


class Labelled(np.ndarray[Any, Any]):
    """A subclass with the memory of its base."""


def layouts(array: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Equal arrays in memory laid out in different ways."""
    bytes_off_by_one = np.empty(array.nbytes + 1, np.uint8)
    unaligned = bytes_off_by_one[1:].view(np.float32).reshape(array.shape)
    unaligned[...] = array
    read_only = array.copy()
    read_only.flags.writeable = False
    return {
        "transposed": np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2),
        "fortran": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=-1)[..., ::2],
        "reversed": np.ascontiguousarray(array[:, :, ::-1])[:, :, ::-1],
        "unaligned": unaligned,
        "read-only": read_only,
        "subclass": array.view(Labelled),
        "subclass, strided": np.repeat(array, 2, axis=0)[::2].view(Labelled),
    }


@pytest.mark.parametrize("layout", layouts(np.zeros((1, 2, 3, 4), np.float32)))
def test_any_memory_layout_is_read_right(
    attention: Path, provider: Provider, qkv: Arrays, layout: str
) -> None:
    fed = [layouts(array)[layout] for array in qkv]
    kept = [array.copy() for array in fed]
    with load(attention, provider) as session:
        result = session(*fed)
        plain = session(*qkv)
    assert np.array_equal(result.output, plain.output)
    np.testing.assert_allclose(result.output, expected(*qkv)[0], rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(fed, kept, strict=True))


def test_a_broadcast_view_is_read_right(session: Session) -> None:
    row = np.arange(4, dtype=np.float32)
    view = np.broadcast_to(row, (1, 2, 3, 4))
    np.testing.assert_allclose(session(view, view, view).output, view)


def test_memory_is_plain_before_the_engine_sees_it(qkv: Arrays) -> None:
    check = FeedCheck(attention_contract())
    for layout in layouts(qkv[0]):
        feeds = check.bind(tuple(layouts(array)[layout] for array in qkv), {})
        for array, fed in zip(qkv, feeds.values(), strict=True):
            assert type(fed) is np.ndarray
            assert fed.flags.c_contiguous, layout
            assert fed.flags.aligned, layout
            assert np.array_equal(fed, array)
    same = check.bind(qkv, {})
    assert all(fed is array for fed, array in zip(same.values(), qkv, strict=True))


def test_the_mapping_of_the_caller_is_left_alone(session: Session, qkv: Arrays) -> None:
    feeds: dict[str, Any] = {
        name: np.asfortranarray(x) for name, x in zip("qkv", qkv, strict=True)
    }
    before = dict(feeds)
    session.run(feeds)
    assert all(feeds[name] is before[name] for name in before)


def cached_contract() -> FeedCheck:
    past = ("float32", ("batch", 2, "past_tokens", 4))
    return FeedCheck(
        contract_of(
            {
                "mask": ("int64", ("batch", "past_tokens + tokens")),
                "ids": ("int64", ("batch", "tokens")),
                "past.0.key": past,
                "past.0.value": past,
            },
            {"logits": ("float32", ("batch", "tokens", 8))},
        )
    )


def cached_feed(*, tokens: int, past: int, mask: int, heads: int = 2) -> dict[str, Any]:
    return {
        "mask": np.ones((1, mask), np.int64),
        "ids": np.ones((1, tokens), np.int64),
        "past.0.key": np.ones((1, heads, past, 4), np.float32),
        "past.0.value": np.ones((1, heads, past, 4), np.float32),
    }


def test_a_dim_that_is_a_sum_is_checked() -> None:
    check = cached_contract()
    check.check(cached_feed(tokens=3, past=4, mask=7))
    with refused(
        "`mask` must have past_tokens + tokens = 7 in dim 1 of [batch, past_tokens + tokens], got "
        "3 in [1, 3]."
    ):
        check.check(cached_feed(tokens=3, past=4, mask=3))


def test_shapes_that_were_right_are_remembered_up_to_a_limit(qkv: Arrays) -> None:
    check = FeedCheck(attention_contract())
    for tokens in (*range(1, 400), 1):
        check.bind(tuple(np.zeros((2, 3, tokens, 4), np.float32) for _ in qkv), {})
        assert 0 < len(check._known) <= 256


def test_an_empty_past_is_legal() -> None:
    cached_contract().check(cached_feed(tokens=3, past=0, mask=3))


def test_room_is_looked_up_where_the_contract_says() -> None:
    """Of a decoder in which nothing is called as in the reference op, with the slots first."""
    cache = ("float32", ("capacity", "batch", 4))
    names = {"layers.0.k": "new.0.k", "layers.0.v": "new.0.v"}
    check = FeedCheck(
        contract_of(
            {
                "filled": ("int32", ("batch",)),
                **dict.fromkeys(names, cache),
                "ids": ("int64", ("batch", "tokens")),
            },
            {
                "logits": ("float32", ("batch", "tokens", 8)),
                **dict.fromkeys(names.values(), cache),
            },
            fixed_cache(names, "filled", axis=0),
        )
    )
    feeds = {
        "ids": np.ones((2, 3), np.int64),
        **dict.fromkeys(names, np.zeros((8, 2, 4), np.float32)),
    }
    check.check({**feeds, "filled": np.array([5, 0], np.int32)})
    for filled in ([6, 0], [0, 6], [-1, 0]):
        with refused(
            f"`filled` must be 0 to 5, got {filled}: the cache has 8 slots and 3 new tokens go "
            "behind those it holds."
        ):
            check.check({**feeds, "filled": np.array(filled, np.int32)})


def test_only_a_dim_that_grows_may_be_empty() -> None:
    entry = CacheEntry(input="memory", output="longer", kind=EntryKind.GROWING, axis=0)
    check = FeedCheck(
        contract_of(
            {"memory": ("float32", ("m", 4)), "past_x": ("float32", ("past_tokens", 4))},
            {"longer": ("float32", ("m + tokens", 4))},
            CacheLayout(entries=(entry,)),
        )
    )
    rows = np.zeros((2, 4), np.float32)
    check.check({"memory": rows[:0], "past_x": rows})
    with pytest.raises(InputError, match="`past_x` must have past_tokens = at least 1"):
        check.check({"memory": rows, "past_x": rows[:0]})


def test_a_fixed_dim_is_checked() -> None:
    with refused(
        "`past.0.key` must have 2 in dim 1 of [batch, 2, past_tokens, 4], got 3 in [1, 3, 4, 4]."
    ):
        cached_contract().check(cached_feed(tokens=1, past=4, mask=5, heads=3))


def test_a_dim_twice_in_one_input_must_agree() -> None:
    check = FeedCheck(contract_of({"x": ("float32", ("n", "n"))}, {"y": ("float32", ("n",))}))
    with refused("`x` must have n = 2 in each of its dims of that name, got 3."):
        check.bind((np.zeros((2, 3), np.float32),), {})


def test_a_division_by_zero_in_a_contract_is_no_crash() -> None:
    check = FeedCheck(
        contract_of(
            {"x": ("float32", ("past",)), "y": ("float32", ("4 // past",))},
            {"z": ("float32", ("past",))},
        )
    )
    check.bind((np.zeros(0, np.float32), np.zeros(2, np.float32)), {})


def test_bfloat16_is_refused_when_loading(lone_model: Callable[..., Path]) -> None:
    tensor = Tensor("x", ["tokens"], "bfloat16")
    serialized = model(
        [tensor], [Tensor("y", ["tokens"], "bfloat16")], [Node("Identity", ["x"], ["y"], "copy")]
    )
    dims = ("bfloat16", ("tokens",))
    path = lone_model(serialized, contract_of({"x": dims}, {"y": dims}))
    with pytest.raises(InputError, match=r"got bfloat16 for `x`.*float16 or float32\.$"):
        load(path)


def test_half_precision_is_fed_as_half(lone_model: Callable[..., Path], qkv: Arrays) -> None:
    path = lone_model(attention_bytes("float16"), attention_contract("float16"))
    with load(path) as session, pytest.raises(InputError, match=r"must be float16, got float32"):
        session(*qkv)
