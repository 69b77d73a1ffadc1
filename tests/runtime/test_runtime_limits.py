"""A call that is too large is refused by its sizes; one that takes too long is ended."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, graph, model
from runtime_cases import contract_of

from causal_attn.errors import InputError, StoppedError, UsageError
from causal_attn.runtime import Cancellation, load

Arrays = tuple[NDArray[np.float32], ...]
LONG = 1.0
"""Seconds within which a call that is ended must be back; it would never be by itself."""


def test_tokens_beyond_the_limit_are_refused(attention: Path, qkv: Arrays) -> None:
    feeds = dict(zip("qkv", qkv, strict=True))
    with load(attention, max_tokens=5) as session:
        session(*qkv)
        session.bind(feeds).run()
    with load(attention, max_tokens=4) as session:
        for call in (
            lambda: session(*qkv),
            lambda: session.run(feeds),
            lambda: session.bind(feeds),
        ):
            with pytest.raises(InputError, match=r"at most 4 tokens, got 5\..*`max_tokens`"):
                call()


def test_bytes_are_those_of_all_inputs_and_outputs(attention: Path, qkv: Arrays) -> None:
    result = {}
    with load(attention) as session:
        result = session(*qkv)._asdict()
    taken = sum(array.nbytes for array in (*qkv, *result.values()))
    with load(attention, max_bytes=taken) as session:
        session(*qkv)
    with load(attention, max_bytes=taken - 1) as session:
        with pytest.raises(InputError, match=rf"at most {taken - 1} bytes, got {taken} for"):
            session(*qkv)
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
            for name, array in zip("qkv", qkv, strict=True)
        }
        with pytest.raises(InputError, match="`max_bytes`"):
            session.run_shared(values)


def test_what_is_too_large_is_refused_before_anything_is_made_for_it(attention: Path) -> None:
    """Views of one number: nothing is there yet, and a copy of each would be 240 MB."""
    large = np.broadcast_to(np.float32(1), (1, 1, 60_000, 1_000))
    with load(attention, max_bytes=1 << 30) as session:
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match="bytes, got 15360000000 for"):
                session(large, large, large)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("name", ["max_tokens", "max_bytes"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8", [8]])
def test_limits_are_positive_integers(attention: Path, name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=rf"`{name}` must be an integer >= 1 or None"):
        load(attention, **{name: wrong})


def test_tokens_that_are_not_there_cannot_be_limited(lone_model: Callable[..., Path]) -> None:
    x: tuple[str, tuple[str | int, ...]] = ("float32", ("rows",))
    serialized = model(
        [Tensor("x", ["rows"])], [Tensor("y", ["rows"])], [Node("Neg", ["x"], ["y"])]
    )
    path = lone_model(serialized, contract_of({"x": x}, {"y": x}))
    with pytest.raises(UsageError, match="`max_tokens` must be None for a model without"):
        load(path, max_tokens=5)


@pytest.fixture
def endless(lone_model: Callable[..., Path]) -> Path:
    """``y = x`` after a loop that ends at once where `go` is false, and never where it is true."""
    scalar: tuple[str, tuple[str | int, ...]] = ("bool", ())
    x: tuple[str, tuple[str | int, ...]] = ("float32", ("n",))
    body = graph(
        [Tensor("i", [], "int64"), Tensor("c", [], "bool"), Tensor("s", ["n"])],
        [Tensor("c2", [], "bool"), Tensor("s2", ["n"])],
        [Node("Identity", ["c"], ["c2"]), Node("Neg", ["s"], ["s2"])],
    )
    serialized = model(
        [Tensor("x", ["n"]), Tensor("go", [], "bool")],
        [Tensor("y", ["n"])],
        [Node("Loop", ["", "go", "x"], ["y"], attributes={"body": body})],
    )
    return lone_model(serialized, contract_of({"x": x, "go": scalar}, {"y": x}))


X = np.arange(3, dtype=np.float32)
FOREVER = {"x": X, "go": np.array(True)}
AT_ONCE = {"x": X, "go": np.array(False)}


def ways(session: Any) -> dict[str, Callable[[], object]]:
    binding = session.bind(FOREVER)
    return {
        "call": lambda: session(**FOREVER),
        "run": lambda: session.run(FOREVER),
        "binding": binding.run,
    }


@pytest.mark.parametrize("way", ["call", "run", "binding"])
def test_a_deadline_ends_a_loop_without_end_and_the_session_goes_on(
    endless: Path, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with load(endless) as session:
        call = ways(session)[way]
        start = time.monotonic()
        with (
            Cancellation(seconds=0.05),
            pytest.raises(StoppedError, match=r"its 0\.05 seconds were over\. The session is"),
        ):
            call()
        assert 0.05 <= time.monotonic() - start < LONG
        np.testing.assert_array_equal(session(**AT_ONCE).y, X)
        binding = session.bind(AT_ONCE)
        binding.run()
        np.testing.assert_array_equal(binding.read("y"), X)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("way", ["call", "run", "binding"])
def test_another_thread_ends_a_call(endless: Path, way: str) -> None:
    with load(endless) as session, Cancellation() as limit:
        call = ways(session)[way]
        timer = threading.Timer(0.05, limit.cancel)
        timer.start()
        with pytest.raises(StoppedError, match=r"cancel\(\) was called"):
            call()
        timer.join()
        # It ends later calls too, without running them.
        with pytest.raises(StoppedError):
            session(**AT_ONCE)


def test_only_calls_inside_the_block_are_ended(endless: Path) -> None:
    with load(endless) as session:
        with Cancellation() as limit:
            limit.cancel()
        np.testing.assert_array_equal(session(**AT_ONCE).y, X)
        other = threading.Thread(target=lambda: session(**AT_ONCE))
        with limit, pytest.raises(StoppedError):
            session(**AT_ONCE)
        other.start()
        other.join()


@pytest.mark.parametrize(("outer", "inner"), [(0.05, 60), (60, 0.05)])
def test_the_first_of_several_deadlines_counts(endless: Path, outer: float, inner: float) -> None:
    with (
        load(endless) as session,
        Cancellation(seconds=outer),
        Cancellation(seconds=inner),
        pytest.raises(StoppedError, match=r"0\.05 seconds"),
    ):
        session(**FOREVER)


def test_a_later_and_shorter_deadline_is_not_kept_waiting(endless: Path) -> None:
    with load(endless) as session, ThreadPoolExecutor(2) as pool:

        def run(seconds: float) -> float:
            start = time.monotonic()
            with Cancellation(seconds=seconds), pytest.raises(StoppedError):
                session(**FOREVER)
            return time.monotonic() - start

        long = pool.submit(run, 0.6)
        time.sleep(0.05)
        short = pool.submit(run, 0.1)
        assert short.result() < 0.5 < long.result()


def test_what_ended_in_time_is_not_kept_until_its_deadline(attention: Path, qkv: Arrays) -> None:
    """A service makes thousands before the first one would have been late."""

    def ended() -> weakref.ref[Cancellation]:
        with Cancellation(seconds=600) as limit:
            session(*qkv)
        return weakref.ref(limit)

    with load(attention) as session:
        made = [ended() for _ in range(5)]
    gc.collect()
    assert [one() for one in made] == [None] * 5


def test_one_cancellation_ends_the_calls_of_many_threads(endless: Path) -> None:
    with load(endless, intra_op_threads=1) as session, ThreadPoolExecutor(4) as pool:
        limit = Cancellation()

        def run(_: int) -> str:
            with limit:
                try:
                    session(**FOREVER)
                except StoppedError:
                    return "stopped"
            return "came back"

        running = [pool.submit(run, n) for n in range(4)]
        time.sleep(0.05)
        limit.cancel()
        assert [future.result(LONG) for future in running] == ["stopped"] * 4
        assert limit._running == {}


def test_a_call_that_fails_by_itself_says_so(endless: Path) -> None:
    with load(endless) as session, Cancellation(seconds=60), pytest.raises(InputError):
        session(X)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "1", [1]])
def test_seconds_are_positive_and_finite(wrong: Any) -> None:
    with pytest.raises(UsageError, match="`seconds` must be a finite number > 0 or None"):
        Cancellation(seconds=wrong)
