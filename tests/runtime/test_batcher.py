"""Joined calls give what each gives alone; whatever goes wrong reaches its own caller only."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model
from runtime_cases import attention_bytes, attention_contract, contract_of, with_entries

from causal_attn.errors import (
    BusyError,
    ClosedError,
    EngineError,
    InputError,
    StoppedError,
    UsageError,
)
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CERTIFICATE_KEY, CONTRACT_KEY, model_digest
from causal_attn.runtime import Batcher, Call, Cancellation, Session, load

Arrays = tuple[NDArray[np.float32], ...]
LONG = 30.0
"""Seconds in which anything here is over."""


def written(
    path: Path, serialized: bytes, contract: Contract, *names: str, passed: bool = True
) -> Path:
    """A lone model whose certificate has a check of each of `names`."""
    path.write_bytes(serialized)
    checks = [Check(name=name, passed=passed, detail="made up") for name in ("parity", *names)]
    certificate = Certificate(
        digest=model_digest(path), verdict=Verdict.CAUSAL, checks=tuple(checks)
    )
    entries = {CONTRACT_KEY: contract.to_json(), CERTIFICATE_KEY: certificate.to_json()}
    path.write_bytes(with_entries(serialized, entries))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(
        tmp_path / "model.onnx",
        attention_bytes(),
        attention_contract(),
        "batch is independent",
        "batch proof",
    )


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    with load(path, intra_op_threads=1) as session:
        yield session


def arrays(seed: int, batch: int = 1, tokens: int = 5) -> Arrays:
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal((batch, 3, tokens, 4), np.float32) for _ in range(3))


def test_joined_calls_are_those_alone_bit_by_bit(path: Path) -> None:
    seen: list[Call] = []
    work = [arrays(n, 1 + n % 3, (1, 5, 33)[n // 3 % 3]) for n in range(54)]
    with load(path, intra_op_threads=1, on_call=seen.append) as session:
        alone = [session(*one) for one in work]
        seen.clear()
        with (
            Batcher(session, max_batch=8, delay_seconds=0.05) as batcher,
            ThreadPoolExecutor(len(work)) as pool,
        ):
            joined = list(pool.map(lambda one: batcher(*one), work))
    for one, other in zip(joined, alone, strict=True):
        assert one._fields == other._fields == ("output", "weights")
        for array, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, wanted)
    outputs = [one.output for one in joined]
    assert not any(np.may_share_memory(a, b) for a, b in itertools.combinations(outputs, 2))
    assert len(seen) < len(work) / 2
    assert max(call.sizes["batch"] for call in seen) <= 8
    assert sum(call.sizes["batch"] for call in seen) == sum(len(one[0]) for one in work)


def test_a_matrix_product_over_all_rows_stays_within_rounding(tmp_path: Path) -> None:
    """Here kernels may choose another order of sums for another number of rows."""
    dims = ("batch", "tokens", 64)
    weights = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    serialized = model(
        [Tensor("x", dims, "float32")],
        [Tensor("y", ("batch", "tokens", 48), "float32")],
        [Node("MatMul", ["x", "w"], ["y"])],
        {"w": weights},
    )
    contract = contract_of({"x": ("float32", dims)}, {"y": ("float32", ("batch", "tokens", 48))})
    path = written(tmp_path / "m.onnx", serialized, contract, "batch proof")
    work = [np.random.default_rng(n).standard_normal((1, 7, 64), np.float32) for n in range(12)]
    with (
        load(path) as session,
        Batcher(session, delay_seconds=0.05) as batcher,
        ThreadPoolExecutor(12) as pool,
    ):
        for x, got in zip(work, pool.map(batcher, work), strict=True):
            bound = 64 * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(weights))
            assert (np.abs(got.y - x.astype(np.float64) @ weights) <= bound).all()
            assert (np.abs(got.y - session(x).y) <= bound).all()


def test_the_batch_may_lie_along_any_axis(tmp_path: Path) -> None:
    inputs = {"x": ("float32", ("tokens", "batch")), "z": ("float32", ("batch",))}
    outputs = {"y": ("float32", ("tokens", "batch"))}
    serialized = model(
        [Tensor(name, list(dims), dtype) for name, (dtype, dims) in inputs.items()],
        [Tensor("y", ["tokens", "batch"], "float32")],
        [Node("Add", ["x", "z"], ["y"])],
    )
    path = written(
        tmp_path / "m.onnx", serialized, contract_of(inputs, outputs), "batch is independent"
    )
    with (
        load(path) as session,
        Batcher(session, delay_seconds=0.05) as batcher,
        ThreadPoolExecutor(9) as pool,
    ):

        def call(n: int) -> bool:
            x = np.full((2, 1 + n % 2), n, np.float32)
            z = np.full(1 + n % 2, n, np.float32)
            return bool((batcher(x, z=z).y == 2 * x).all())

        assert all(pool.map(call, range(9)))


def test_a_request_that_is_refused_is_refused_at_once(session: Session) -> None:
    q, k, v = arrays(0)
    with Batcher(session, delay_seconds=LONG) as batcher:
        with pytest.raises(InputError, match="`v` must have tokens = 5"):
            batcher(q, k, v[:, :, :-1])
        assert batcher.waiting == 0


def test_a_failure_is_that_of_its_own_caller(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session.run

    def failing(feeds: Any, outputs: Any = None) -> Any:
        if (feeds["q"] == 7).any():
            raise EngineError("made up")
        return run(feeds, outputs)

    monkeypatch.setattr(session, "run", failing)
    bad = (np.full_like(arrays(0)[0], 7), *arrays(0)[1:])
    with Batcher(session, delay_seconds=0.1) as batcher, ThreadPoolExecutor(6) as pool:
        good = [pool.submit(batcher, *arrays(n)) for n in range(5)]
        failed = pool.submit(batcher, *bad)
        for n, future in enumerate(good):
            wanted = run(dict(zip("qkv", arrays(n), strict=True)))["output"]
            np.testing.assert_array_equal(future.result(LONG).output, wanted)
        with pytest.raises(EngineError, match="made up"):
            failed.result(LONG)


def test_joined_calls_beyond_the_limit_of_one_are_answered(path: Path) -> None:
    """Each is allowed; that they were joined is not their fault."""
    one = arrays(0)
    taken = sum(array.nbytes for array in one)
    with load(path) as session:
        taken += sum(array.nbytes for array in session(*one))
    with (
        load(path, max_bytes=taken) as session,
        Batcher(session, delay_seconds=0.05) as batcher,
        ThreadPoolExecutor(4) as pool,
    ):
        for n, got in enumerate(pool.map(lambda n: batcher(*arrays(n)), range(4))):
            np.testing.assert_array_equal(got.output, session(*arrays(n)).output)


class Held:
    """A session's `run` that waits until it is let go."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.runs = 0
        run = session.run

        def waiting(feeds: Any, outputs: Any = None) -> Any:
            self.runs += 1
            self.began.set()
            assert self.go_on.wait(LONG)
            return run(feeds, outputs)

        monkeypatch.setattr(session, "run", waiting)


def test_a_full_queue_refuses_and_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(session, monkeypatch)
    with (
        Batcher(session, delay_seconds=0, max_waiting=2) as batcher,
        ThreadPoolExecutor(3) as pool,
    ):
        futures = [pool.submit(batcher, *arrays(0))]
        assert held.began.wait(LONG)
        futures += [pool.submit(batcher, *arrays(n)) for n in (1, 2)]
        until(lambda: batcher.waiting == 2)
        with pytest.raises(BusyError, match="At most 2 calls may wait, got one more"):
            batcher(*arrays(3))
        held.go_on.set()
        assert all(future.result(LONG) for future in futures)
        batcher(*arrays(3))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_deadline_ends_its_own_call_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(session, monkeypatch)
    with Batcher(session, delay_seconds=0) as batcher, ThreadPoolExecutor(2) as pool:
        running = pool.submit(batcher, *arrays(0))
        assert held.began.wait(LONG)
        patient = pool.submit(batcher, *arrays(1))
        until(lambda: batcher.waiting == 1)
        with (
            Cancellation(seconds=0.05),
            pytest.raises(StoppedError, match=r"0\.05 seconds were over"),
        ):
            batcher(*arrays(2))
        held.go_on.set()
        running.result(LONG)
        np.testing.assert_array_equal(patient.result(LONG).output, session(*arrays(1)).output)
    assert held.runs == 2


def test_what_was_ended_before_is_not_taken(session: Session) -> None:
    limit = Cancellation()
    limit.cancel()
    with Batcher(session, delay_seconds=LONG) as batcher:
        with limit, pytest.raises(StoppedError):
            batcher(*arrays(0))
        assert batcher.waiting == 0


def test_a_run_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    dims = ("batch",)
    from onnx_bytes import graph

    body = graph(
        [Tensor("i", [], "int64"), Tensor("c", [], "bool"), Tensor("s", ["batch"])],
        [Tensor("c2", [], "bool"), Tensor("s2", ["batch"])],
        [Node("Identity", ["c"], ["c2"]), Node("Neg", ["s"], ["s2"])],
    )
    serialized = model(
        [Tensor("x", ["batch"])],
        [Tensor("y", ["batch"])],
        [Node("Loop", ["", "forever", "x"], ["y"], attributes={"body": body})],
        {"forever": np.array(True)},
    )
    contract = contract_of({"x": ("float32", dims)}, {"y": ("float32", dims)})
    path = written(tmp_path / "m.onnx", serialized, contract, "batch proof")
    with load(path) as session, Batcher(session, delay_seconds=0.01) as batcher:
        x = np.zeros(1, np.float32)
        for _ in range(2):
            with Cancellation(seconds=0.1), pytest.raises(StoppedError):
                batcher(x)
        start = time.monotonic()
    # `close` waited for the thread, which waited for the endless run.
    assert time.monotonic() - start < LONG


def test_tasks_of_an_event_loop(session: Session) -> None:
    async def main(batcher: Batcher) -> None:
        answers = await asyncio.gather(*(batcher.call_async(*arrays(n)) for n in range(6)))
        for n, answer in enumerate(answers):
            np.testing.assert_array_equal(answer.output, session(*arrays(n)).output)
        with pytest.raises(InputError):
            await batcher.call_async(arrays(0)[0])

    with Batcher(session) as batcher:
        asyncio.run(main(batcher))


def test_a_task_takes_its_call_back(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(session, monkeypatch)

    async def main(batcher: Batcher) -> None:
        first = asyncio.create_task(batcher.call_async(*arrays(0)))
        await asyncio.to_thread(held.began.wait, LONG)
        second = asyncio.create_task(batcher.call_async(*arrays(1)))
        while batcher.waiting == 0:
            await asyncio.sleep(0.001)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        with Cancellation(seconds=0.05), pytest.raises(StoppedError, match="seconds were over"):
            await batcher.call_async(*arrays(2))
        held.go_on.set()
        assert (await first).output.shape == (1, 3, 5, 4)

    with Batcher(session, delay_seconds=0) as batcher:
        asyncio.run(main(batcher))
    assert held.runs == 1


@pytest.mark.parametrize("drain", [True, False])
def test_close_answers_or_abandons_what_waits(
    session: Session, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    held = Held(session, monkeypatch)
    batcher = Batcher(session, delay_seconds=0)
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(batcher, *arrays(0))
        assert held.began.wait(LONG)
        waiting = pool.submit(batcher, *arrays(1))
        until(lambda: batcher.waiting == 1)
        closing = pool.submit(batcher.close, drain=drain)
        until(lambda: batcher._closing)
        held.go_on.set()
        closing.result(LONG)
        running.result(LONG)
        if drain:
            waiting.result(LONG)
        else:
            with pytest.raises(ClosedError, match="closed before the call"):
                waiting.result(LONG)
    batcher.close()
    with pytest.raises(ClosedError, match="got a call after close"):
        batcher(*arrays(0))
    assert not session.closed


def test_a_closed_session_is_said(session: Session) -> None:
    with Batcher(session) as batcher:
        session.close()
        with pytest.raises(ClosedError):
            batcher(*arrays(0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_after_a_fork_a_call_is_refused_and_does_not_wait_for_ever(session: Session) -> None:
    with Batcher(session) as batcher:
        child = os.fork()
        if child == 0:
            try:
                batcher(*arrays(0))
            except ClosedError as error:
                os._exit(42 if "after a fork" in str(error) else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42


@pytest.mark.parametrize("names", [(), ("window",)])
def test_a_certificate_that_does_not_say_so_is_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    path = written(tmp_path / "m.onnx", attention_bytes(), attention_contract(), *names)
    with load(path) as session, pytest.raises(UsageError, match="sequences of a batch are indep"):
        Batcher(session)


def test_a_check_that_failed_is_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx",
        attention_bytes(),
        attention_contract(),
        "batch is independent",
        passed=False,
    )
    with (
        load(path, accept="unverified") as session,
        pytest.raises(UsageError, match="sequences of a batch are independent"),
    ):
        Batcher(session)


@pytest.mark.parametrize(
    ("dims", "out"),
    [
        (("rows", "tokens"), ("rows", "tokens")),
        (("batch", "batch"), ("batch", "batch")),
        (("batch", "tokens"), ("tokens", "batch*2")),
    ],
)
def test_a_model_that_cannot_be_joined_is_refused(
    session: Session, dims: tuple[str, str], out: tuple[str, str]
) -> None:
    session.contract = contract_of({"x": ("float32", dims)}, {"y": ("float32", out)})
    with pytest.raises(UsageError, match="one dim 'batch' in every input and output"):
        Batcher(session)


def test_the_contract_bounds_the_batch(path: Path) -> None:
    seen: list[Call] = []
    with load(path, on_call=seen.append) as session:
        session.contract = replace(session.contract, bounds={"batch": (1, 3)})
        with Batcher(session, delay_seconds=0.05) as batcher, ThreadPoolExecutor(9) as pool:
            list(pool.map(lambda n: batcher(*arrays(n)), range(9)))
    assert max(call.sizes["batch"] for call in seen) <= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch": 0},
        {"max_batch": True},
        {"max_batch": 1.5},
        {"max_waiting": 0},
        {"delay_seconds": -1},
        {"delay_seconds": float("nan")},
        {"delay_seconds": float("inf")},
        {"delay_seconds": "1"},
        {"session": None},
    ],
)
def test_arguments_are_checked(session: Session, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"`{name}` must be"):
        Batcher(**{"session": session, **wrong})


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_stays_in_its_process(session: Session, copied: Callable[[Any], Any]) -> None:
    with Batcher(session) as batcher, pytest.raises(UsageError, match="must stay in its process"):
        copied(batcher)


def test_what_is_no_exception_reaches_its_caller_and_ends_no_thread(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any) -> Any:
        raise SystemExit(3)

    feeds = arrays(0)
    with Batcher(session) as batcher, ThreadPoolExecutor() as pool:
        with monkeypatch.context() as broken:
            broken.setattr(session, "run", leave)
            with pytest.raises(SystemExit):
                pool.submit(batcher, *feeds).result(LONG)
        assert len(pool.submit(batcher, *feeds).result(LONG)) == len(session(*feeds))
