"""A binding computes what a call computes, in memory of its own, and writes caches in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model
from runtime_cases import contract_of

from causal_attn.errors import ClosedError, InputError
from causal_attn.machine.provider import Provider
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.runtime import load

Arrays = tuple[NDArray[np.float32], ...]

_CACHE = ("batch", 2, "capacity", 8)
_STEP = ("batch", 1, 16)
_CACHED_INPUTS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    **dict.fromkeys(("q", "k", "v"), ("float32", _STEP)),
    **dict.fromkeys(("past_key", "past_value"), ("float32", _CACHE)),
    "lengths": ("int32", ("batch",)),
    "total": ("int32", ()),
}
_CACHED_OUTPUTS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "output": ("float32", _STEP),
    **dict.fromkeys(("present_key", "present_value"), ("float32", _CACHE)),
}
_SHARE = {"present_key": "past_key", "present_value": "past_value"}


@pytest.fixture
def cached(lone_model: Callable[..., Path]) -> Path:
    """One token a call over a cache of fixed capacity: GroupQueryAttention with 2 heads of 8."""
    serialized = model(
        [Tensor(name, dims, dtype) for name, (dtype, dims) in _CACHED_INPUTS.items()],
        [Tensor(name, dims, dtype) for name, (dtype, dims) in _CACHED_OUTPUTS.items()],
        [
            Node(
                "GroupQueryAttention",
                list(_CACHED_INPUTS),
                list(_CACHED_OUTPUTS),
                "gqa",
                domain="com.microsoft",
                attributes={"num_heads": 2, "kv_num_heads": 2},
            )
        ],
    )
    return lone_model(serialized, contract_of(_CACHED_INPUTS, _CACHED_OUTPUTS))


def _step(capacity: int, past: int) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(past)

    def draw(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape, np.float32)

    return {
        **{name: draw(1, 1, 16) for name in "qkv"},
        **{name: draw(1, 2, capacity, 8) for name in ("past_key", "past_value")},
        "lengths": np.array([past], np.int32),
        "total": np.array(past + 1, np.int32),
    }


def _expected(feeds: dict[str, NDArray[Any]], past: int) -> NDArray[np.float64]:
    key, value = (
        np.concatenate([feeds[f"past_{name}"][0, :, :past], feeds[name[0]].reshape(2, 1, 8)], 1)
        for name in ("key", "value")
    )
    scores = np.einsum("hd,htd->ht", feeds["q"].reshape(2, 8).astype(float), key) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    result: NDArray[np.float64] = np.einsum("ht,htd->hd", weights, value).reshape(1, 1, 16)
    return result


def test_equals_a_call(attention: Path, provider: Provider, qkv: Arrays) -> None:
    with load(attention, provider) as session:
        called = session(*qkv)
        binding = session.bind(dict(zip("qkv", qkv, strict=True)))
        binding.run()
        for name in ("output", "weights"):
            np.testing.assert_array_equal(binding.read(name), getattr(called, name))


def test_update_is_what_the_next_run_reads(attention: Path, qkv: Arrays) -> None:
    q, k, v = qkv
    with load(attention) as session:
        binding = session.bind({"q": q, "k": k, "v": v})
        binding.run()
        first = binding.read("output")
        # A transposed view: its memory is not in the order of its axes.
        other = np.ascontiguousarray((v * 2).swapaxes(2, 3)).swapaxes(2, 3)
        binding.update({"v": other})
        binding.run()
        np.testing.assert_allclose(binding.read("output"), first * 2, rtol=1e-6)
        np.testing.assert_array_equal(binding.read("v"), v * 2)


def test_owns_its_memory(attention: Path, qkv: Arrays) -> None:
    q, k, v = (array.copy() for array in qkv)
    with load(attention) as session:
        called = session(*qkv)
        binding = session.bind({"q": q, "k": k, "v": v})
        v[:] = np.nan
        binding.run()
        read = binding.read("output")
        np.testing.assert_array_equal(read, called.output)
        binding.update({"v": qkv[2] * 3})
        binding.run()
        np.testing.assert_array_equal(read, called.output)


@pytest.mark.parametrize("past", [1, 5])
def test_shared_cache_is_written_in_place(cached: Path, past: int) -> None:
    capacity = 9
    feeds = _step(capacity, past)
    with load(cached) as session:
        binding = session.bind(feeds, share=_SHARE)
        for step in range(3):
            binding.run()
            np.testing.assert_allclose(
                binding.read("output"), _expected(feeds, past + step), rtol=1e-5, atol=1e-6
            )
            cache = binding.read("past_key")
            np.testing.assert_array_equal(cache, binding.read("present_key"))
            np.testing.assert_array_equal(cache[0, :, past + step], feeds["k"].reshape(2, 8))
            untouched = [t for t in range(capacity) if not past <= t <= past + step]
            np.testing.assert_array_equal(
                cache[0, :, untouched], feeds["past_key"][0, :, untouched]
            )
            fresh = {k: a for k, a in _step(capacity, 40 + step).items() if k in ("q", "k", "v")}
            for name in ("key", "value"):
                feeds[f"past_{name}"][0, :, past + step] = feeds[name[0]].reshape(2, 8)
            feeds |= fresh
            following = past + step + 1
            binding.update(
                {
                    **fresh,
                    "lengths": np.array([following], np.int32),
                    "total": np.array(following + 1, np.int32),
                }
            )


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ({"none": "q"}, "must map outputs"),
        ({"output": "none"}, "must map outputs"),
        ({"weights": "q"}, "one shape and dtype"),
        ({"output": "q", "weights": "q"}, "one shape and dtype"),
    ],
)
def test_a_share_that_cannot_be_is_refused(
    attention: Path, qkv: Arrays, share: dict[str, str], words: str
) -> None:
    with load(attention) as session, pytest.raises(InputError, match=words):
        session.bind(dict(zip("qkv", qkv, strict=True)), share=share)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_share_is_held_to_the_layout(lone_model: Callable[..., Path], in_place: bool) -> None:
    """No name of the reference op is in it: the state that is replaced may share, nothing else."""
    row: tuple[str, tuple[str | int, ...]] = ("float32", ("batch", 4))
    tokens: tuple[str, tuple[str | int, ...]] = ("float32", ("batch", "tokens"))
    inputs = {"state": row, "other": row, "x": tokens}
    outputs = {"next_state": row, "y": tokens}
    serialized = model(
        [Tensor(name, dims, dtype) for name, (dtype, dims) in inputs.items()],
        [Tensor(name, dims, dtype) for name, (dtype, dims) in outputs.items()],
        [Node("Add", ["state", "other"], ["next_state"], "a"), Node("Neg", ["x"], ["y"], "b")],
    )
    entry = CacheEntry(input="state", output="next_state", kind=EntryKind.REPLACED)
    layout = CacheLayout(entries=(entry,), in_place=in_place)
    feeds = {name: np.ones((1, 4), np.float32) for name in inputs}
    with load(lone_model(serialized, contract_of(inputs, outputs, layout))) as session:
        with pytest.raises(InputError, match="`share` must be out of"):
            session.bind(feeds, share={"y": "x"})
        with pytest.raises(InputError, match="`share` must be out of"):
            session.bind(feeds, share={"next_state": "other"})
        if not in_place:
            with pytest.raises(InputError, match=r"`share` must be out of \{\}"):
                session.bind(feeds, share={"next_state": "state"})
            return
        bound = session.bind(feeds, share={"next_state": "state"})
        for _ in range(3):
            bound.run()
        np.testing.assert_array_equal(bound.read("state"), np.full((1, 4), 4.0))


def test_one_input_cannot_hold_two_outputs(cached: Path) -> None:
    share = {"present_key": "past_key", "present_value": "past_key"}
    with load(cached) as session, pytest.raises(InputError, match="use an input once"):
        session.bind(_step(4, 1), share=share)


def test_outputs_of_unknown_size_are_refused(lone_model: Callable[..., Path]) -> None:
    path = lone_model(
        model(
            [Tensor("x", ["tokens"])],
            [Tensor("y", ["rank", "found"], "int64")],
            [Node("NonZero", ["x"], ["y"], "find")],
        ),
        contract_of({"x": ("float32", ("tokens",))}, {"y": ("int64", ("rank", "found"))}),
    )
    with load(path) as session, pytest.raises(InputError, match="`y` must have dims that follow"):
        session.bind({"x": np.ones(3, np.float32)})


def test_a_size_that_divides_by_zero_is_refused(lone_model: Callable[..., Path]) -> None:
    past, quotient = ("float32", ("past",)), ("float32", ("4 // past",))
    serialized = model(
        [Tensor("x", ["past"])], [Tensor("y", ["n"])], [Node("Identity", ["x"], ["y"], "copy")]
    )
    path = lone_model(serialized, contract_of({"x": past}, {"y": quotient}))
    with load(path) as session, pytest.raises(InputError, match="`y` must have dims that follow"):
        session.bind({"x": np.zeros(0, np.float32)})


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("w", lambda a: a, "must name inputs"),
        ("q", lambda a: a[:, :, :2], "must be as it was bound"),
        ("q", lambda a: a.astype(np.float64), "must be as it was bound"),
        ("q", lambda a: a.tolist(), "got list"),
    ],
)
def test_a_wrong_update_is_refused_and_changes_nothing(
    attention: Path, qkv: Arrays, name: str, change: Callable[[Any], Any], words: str
) -> None:
    q, k, v = qkv
    with load(attention) as session:
        binding = session.bind({"q": q, "k": k, "v": v})
        with pytest.raises(InputError, match=words):
            binding.update({"k": k * 2, name: change(q)})
        np.testing.assert_array_equal(binding.read("k"), k)
        with pytest.raises(InputError, match="`name` must be one of"):
            binding.read("nothing")


def test_wrong_feeds_are_refused(attention: Path, qkv: Arrays) -> None:
    q, k, v = qkv
    with load(attention) as session, pytest.raises(InputError, match="must have batch"):
        session.bind({"q": q, "k": k[:1], "v": v})


def test_closed_session_runs_no_binding(attention: Path, qkv: Arrays) -> None:
    session = load(attention)
    binding = session.bind(dict(zip("qkv", qkv, strict=True)))
    session.close()
    with pytest.raises(ClosedError):
        binding.run()


@pytest.mark.parametrize("dim", ["tokens//0", "tokens//(batch - batch)", "tokens//none"])
def test_an_output_without_a_size_cannot_be_bound(
    lone_model: Callable[..., Path], dim: str
) -> None:
    x: tuple[str, tuple[str | int, ...]] = ("float32", ("batch", "tokens"))
    serialized = model(
        [Tensor("x", ["batch", "tokens"])],
        [Tensor("y", ["batch", "tokens"])],
        [Node("Neg", ["x"], ["y"], "n")],
    )
    path = lone_model(serialized, contract_of({"x": x}, {"y": ("float32", ("batch", dim))}))
    feeds = {"x": np.ones((1, 2), np.float32)}
    with load(path) as session:
        assert session(**feeds).y.shape == (1, 2)
        with pytest.raises(
            InputError, match="must have dims that follow from those of the inputs"
        ):
            session.bind(feeds)
