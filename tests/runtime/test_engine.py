"""Many requests at once: each gets the tokens it would get alone, whatever the others do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from toy_decoder import VOCABULARY, logits_of, write_decoder

from causal_attn.errors import (
    BusyError,
    ClosedError,
    ContextError,
    EngineError,
    StoppedError,
    UsageError,
)
from causal_attn.runtime.engine import Engine, Stream
from causal_attn.runtime.engine.batch import Batch
from causal_attn.runtime.engine.prefixes import Prefixes
from causal_attn.runtime.engine.rounds import Rounds
from causal_attn.runtime.engine.work import Tally, Work
from causal_attn.runtime.generate import Decoding, Generator
from causal_attn.runtime.generate.answer import Answer
from causal_attn.runtime.ort import OrtValue, value_of

CONTEXT = 40


@pytest.fixture(scope="module", params=[False, True], ids=["growing", "fixed"])
def package(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    files = {"genai_config.json": {"model": {"context_length": CONTEXT}}}
    path = tmp_path_factory.mktemp("toy") / "package"
    return write_decoder(path, fixed=request.param, files=files)


@pytest.fixture
def generator(package: Path) -> Iterator[Generator]:
    with Generator.open(package) as opened:
        yield opened


def greedy(prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits_of(ids)[-1].argmax()))
    return ids[len(prompt) :]


def prompt_of(seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(token) for token in random.integers(0, VOCABULARY, random.integers(1, 20))]


def ids_of(stream: Stream) -> list[int]:
    return [token.id for token in stream]


def test_tokens_that_came_are_given_once(generator: Generator) -> None:
    with Engine(generator) as engine:
        assert engine.open
        stream = engine.submit([1, 2], max_new_tokens=9)
        first = next(stream).id
        while engine.counts.running:
            time.sleep(0.001)
        rest = [token.id for token in stream.came()]
        assert [first, *rest] == greedy([1, 2], 9)
        assert (stream.came(), list(stream)) == ([], [])
    assert not engine.open


def slow(generator: Generator, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    call = generator.decoder.call

    def waited(*arguments: Any) -> Any:
        time.sleep(seconds)
        return call(*arguments)

    monkeypatch.setattr(generator.decoder, "call", waited)


class Schedules(RuleBasedStateMachine):
    """Requests come, are cancelled and meet failing steps, in any order of rounds."""

    package: Path

    @initialize(chunk=st.integers(1, 9), kept=st.sampled_from([0, 30, 200]))
    def start(self, chunk: int, kept: int) -> None:
        self.generator = Generator.open(self.package)
        self.tally = Tally()
        prefixes = Prefixes(self.generator.decoder, kept, CONTEXT)
        self.rounds = Rounds(self.generator.decoder, prefixes, chunk, self.tally)
        self.asked: list[tuple[list[int], int, Stream, Work]] = []
        self.may_fail: set[int] = set()

    @rule(seed=st.integers(0, 5), count=st.integers(1, 12), longer=st.integers(0, 3))
    def come(self, seed: int, count: int, longer: int) -> None:
        if not self.rounds.takes_a_prompt or len(self.rounds.works) >= 4:
            return
        prompt = (prompt_of(seed) * 2)[: 18 + longer]
        stream = Stream()
        request = self.generator.request(prompt, max_new_tokens=count)
        work = Work(request, stream, 0, CONTEXT, self.tally)
        self.rounds.begin(work)
        self.asked.append((prompt, count, stream, work))

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.rounds.run()

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if which < len(self.asked):
            self.asked[which][2].cancel()

    @rule(method=st.sampled_from(["call", "laid"]))
    def fail(self, method: str) -> None:
        self.may_fail |= {id(work) for work in self.rounds.works}

        def failing(*_: Any) -> Any:
            raise MemoryError("made up for a test")

        setattr(self.generator.decoder, method, failing)
        self.rounds.run()
        delattr(self.generator.decoder, method)

    @invariant()
    def no_more_run_than_were_asked(self) -> None:
        if hasattr(self, "rounds"):
            assert len(self.rounds.works) <= len(self.asked)

    def teardown(self) -> None:
        if not hasattr(self, "rounds"):
            return
        for _ in range(200):
            self.rounds.run()
        assert self.rounds.works == []
        counts = self.tally.counts(waiting=0, running=0)
        assert counts.finished + counts.failed + counts.cancelled == len(self.asked)
        for prompt, count, stream, work in self.asked:
            assert work.over
            found: list[int] = []
            try:
                found.extend(token.id for token in stream)
            except EngineError:
                assert id(work) in self.may_fail
                assert found == greedy(prompt, len(found))
            else:
                assert found == greedy(prompt, len(found))
                assert len(found) == count or stream.cancelled
        self.generator.close()


def test_any_schedule_gives_each_its_own_tokens(package: Path) -> None:
    class Here(Schedules):
        pass

    Here.package = package
    Here.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    Here.TestCase().runTest()


def test_requests_get_what_they_get_alone(generator: Generator) -> None:
    prompts = [prompt_of(seed) for seed in range(12)]
    with Engine(generator, max_running=5, prefill_chunk=4) as engine:
        streams = [engine.submit(prompt, max_new_tokens=15) for prompt in prompts]
        assert [ids_of(stream) for stream in streams] == [greedy(one, 15) for one in prompts]
        counts = engine.counts
    assert (counts.finished, counts.failed, counts.tokens) == (12, 0, 180)


def test_a_batch_holds_nothing_of_a_row_that_left(generator: Generator) -> None:
    decoder = generator.decoder
    batch, sequences = Batch(decoder), []
    for prompt in ([1, 2, 3, 4, 5, 6], [7, 8]):
        sequences.append(Decoding(decoder))
        sequences[-1].feed(prompt)
    batch.change([], sequences)
    name = "past_key_values.0.key"
    poisoned = batch._past[name].numpy().copy()
    poisoned[0] = np.nan
    batch._past = {name: value_of(poisoned)}
    batch.change([1], [])
    assert np.isfinite(batch._past[name].numpy()).all()
    np.testing.assert_allclose(batch.step([9])[0], logits_of([7, 8, 9])[-1], atol=1e-4)


def test_in_a_batch_of_one_size_neighbours_do_not_change_a_bit(generator: Generator) -> None:
    def logits(neighbour: list[int]) -> Any:
        batch, sequences = Batch(generator.decoder), []
        for prompt in ([3, 1, 4, 1], neighbour):
            sequences.append(Decoding(generator.decoder))
            sequences[-1].feed(prompt)
        batch.change([], sequences)
        return batch.step([5, 6])[0].copy()

    np.testing.assert_array_equal(logits([2, 7, 1, 8]), logits([9, 9, 9, 9]))


def test_requests_leave_nothing_behind(generator: Generator) -> None:
    """Of 400 requests, 40 of them cancelled: objects and buffers are as many as before."""

    def ask(engine: Engine, numbers: range) -> None:
        for first in numbers[::10]:
            prompts = [
                [n % VOCABULARY, n // VOCABULARY, 1, 2, 3] for n in range(first, first + 10)
            ]
            streams = [engine.submit(prompt, max_new_tokens=6) for prompt in prompts]
            next(streams[first % 7])
            streams[first % 7].cancel()
            for stream in streams:
                list(stream)
        while engine.counts.running:
            time.sleep(0.001)

    def left() -> Counter[str]:
        gc.collect()
        kinds = (Stream, Work, Decoding, OrtValue)
        return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)

    elsewhere = left()
    with Engine(generator, prefix_tokens=50) as engine:
        ask(engine, range(100))
        before = left()
        ask(engine, range(100, 400))
        assert left() == before
        # Ten prompts are kept for those that begin alike; nothing else is.
        assert before - elsewhere == {"Decoding": 10, "OrtValue": 10}


def test_an_equal_beginning_is_not_computed_again(generator: Generator) -> None:
    shared = [index % VOCABULARY for index in range(25)]
    with Engine(generator) as engine:
        for end in ([1, 2], [1, 3], [4]):
            prompt = shared + end
            assert ids_of(engine.submit(prompt, max_new_tokens=4)) == greedy(prompt, 4)
        assert engine.counts.reused == 26 + 25


def test_a_step_that_fails_loses_those_in_it_alone(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, failed = generator.decoder.call, threading.Event()

    def once(ids: Any, mask: Any, past: Any) -> Any:
        time.sleep(0.01)
        if len(ids) == 2 and not failed.is_set():
            failed.set()
            raise MemoryError("no room")
        return call(ids, mask, past)

    monkeypatch.setattr(generator.decoder, "call", once)
    with Engine(generator, max_running=2) as engine:
        streams = [engine.submit([seed, 2], max_new_tokens=9) for seed in range(4)]
        # The first two meet in the batch once both prompts are in.
        for stream in streams[:2]:
            with pytest.raises(EngineError, match="MemoryError: no room"):
                list(stream)
        for seed in (2, 3):
            assert ids_of(streams[seed]) == greedy([seed, 2], 9)
        assert ids_of(engine.submit([5], max_new_tokens=3)) == greedy([5], 3)


def test_a_deadline_ends_a_request_and_no_other(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(generator, 0.02, monkeypatch)
    with Engine(generator) as engine:
        late = engine.submit([1], seconds=0.1, max_new_tokens=30)
        other = engine.submit([2], max_new_tokens=10)
        with pytest.raises(StoppedError, match="by its deadline"):
            list(late)
        assert ids_of(other) == greedy([2], 10)


def test_a_cancelled_request_ends_without_an_error(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(generator, 0.01, monkeypatch)
    with Engine(generator) as engine:
        with engine.submit([1]) as stream:
            first = next(stream)
        rest = ids_of(stream)
        assert [first.id, *rest] == greedy([1], 1 + len(rest))
        assert len(rest) < 10
    assert engine.counts.cancelled == 1


def test_a_full_queue_refuses(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(generator, 0.02, monkeypatch)
    with Engine(generator, max_running=1, max_waiting=2) as engine:
        streams = [engine.submit([seed], max_new_tokens=5) for seed in range(3)]
        with pytest.raises(BusyError, match="At most 2 requests may wait"):
            engine.submit([9])
        assert [len(ids_of(stream)) for stream in streams] == [5, 5, 5]


def test_a_long_prompt_does_not_stall_the_others(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    call = generator.decoder.call

    def noted(ids: Any, mask: Any, past: Any) -> Any:
        time.sleep(0.01)
        order.append(ids.shape[1])
        return call(ids, mask, past)

    monkeypatch.setattr(generator.decoder, "call", noted)
    with Engine(generator, prefill_chunk=5) as engine:
        stream = engine.submit([1], max_new_tokens=20)
        next(stream)
        other = engine.submit([2] * 20, max_new_tokens=2)
        list(other)
        list(stream)
    chunks = [index for index, tokens in enumerate(order) if tokens == 5]
    assert len(chunks) == 4
    # Between two chunks of the prompt there is a step of the other request, until it is over.
    assert all(later - earlier >= 2 for earlier, later in pairwise(chunks))


def test_the_context_ends_a_request(generator: Generator) -> None:
    with Engine(generator) as engine:
        stream = engine.submit([1, 2])
        found: list[int] = []
        with pytest.raises(ContextError, match=f"at most {CONTEXT} tokens") as caught:
            found.extend(token.id for token in stream)
        assert found == greedy([1, 2], CONTEXT - 1)
        assert caught.value.tokens == (1, 2, *found)
        with pytest.raises(ContextError, match="`prompt` must have at most"):
            engine.submit([1] * (CONTEXT + 1))


def test_room_for_tokens_is_reserved(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    widest = 0
    call = generator.decoder.call

    def noted(ids: Any, mask: Any, past: Any) -> Any:
        nonlocal widest
        widest = max(widest, mask.size)
        return call(ids, mask, past)

    monkeypatch.setattr(generator.decoder, "call", noted)
    with Engine(generator, max_cached_tokens=35) as engine:
        with pytest.raises(UsageError, match="at most 35 tokens together, got 36"):
            engine.submit([1] * 10, max_new_tokens=26)
        streams = [engine.submit([seed] * 5, max_new_tokens=10) for seed in range(8)]
        assert [ids_of(one) for one in streams] == [greedy([s] * 5, 10) for s in range(8)]
    assert 15 < widest <= 35


def test_an_event_loop_reads_streams(generator: Generator) -> None:
    async def read(engine: Engine, seed: int) -> list[int]:
        return [token.id async for token in engine.submit([seed, 1], max_new_tokens=12)]

    async def all_of_them(engine: Engine) -> list[list[int]]:
        return await asyncio.gather(*(read(engine, seed) for seed in range(6)))

    with Engine(generator) as engine:
        assert asyncio.run(all_of_them(engine)) == [greedy([seed, 1], 12) for seed in range(6)]


def test_two_tasks_may_read_one_stream(generator: Generator) -> None:
    async def both(engine: Engine) -> tuple[list[int], list[int]]:
        stream = engine.submit([5, 1], max_new_tokens=12)

        async def read() -> list[int]:
            return [token.id async for token in stream]

        return await asyncio.wait_for(asyncio.gather(read(), read()), 30)

    with Engine(generator) as engine:
        parts = asyncio.run(both(engine))
    assert sorted(one for part in parts for one in part) == sorted(greedy([5, 1], 12))


@pytest.mark.parametrize("wrong", [None, "package"])
def test_it_is_made_of_a_generator(wrong: object) -> None:
    with pytest.raises(UsageError, match=r"must be a Generator, got .* Generator.open"):
        Engine(wrong)  # type: ignore[arg-type]


def test_threads_submit_side_by_side(generator: Generator) -> None:
    found: dict[int, list[int]] = {}
    with Engine(generator, max_running=3) as engine:

        def ask(seed: int) -> None:
            found[seed] = ids_of(engine.submit([seed, 4], max_new_tokens=10))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {seed: greedy([seed, 4], 10) for seed in range(10)}


@pytest.mark.parametrize("drain", [True, False])
def test_close_answers_or_abandons(
    generator: Generator, drain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(generator, 0.01, monkeypatch)
    engine = Engine(generator, max_running=2)
    streams = [engine.submit([seed], max_new_tokens=20) for seed in range(5)]
    engine.close(drain=drain)
    for seed, stream in enumerate(streams):
        if drain:
            assert ids_of(stream) == greedy([seed], 20)
        else:
            with pytest.raises(ClosedError):
                list(stream)
    with pytest.raises(ClosedError):
        engine.submit([1])
    engine.close()


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"max_running": 0}, "`max_running` must be an integer >= 1, got 0"),
        ({"max_waiting": -1}, "`max_waiting` must be an integer >= 0"),
        ({"prefill_chunk": 2.5}, "`prefill_chunk` must be an integer >= 1"),
        ({"max_cached_tokens": 0}, "`max_cached_tokens` must be an integer >= 1"),
        ({"prefix_tokens": True}, "`prefix_tokens` must be an integer >= 0"),
    ],
)
def test_limits_are_numbers(generator: Generator, limits: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Engine(generator, **limits)


def test_what_is_wrong_is_said_at_once(generator: Generator) -> None:
    with Engine(generator) as engine:
        for wrong in ({"temperature": -1}, {"seconds": 0}, {"max_new_tokens": 0}):
            with pytest.raises(UsageError):
                engine.submit([1], **wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="must stay in its process"):
            pickle.dumps(engine)


@pytest.mark.parametrize("place", ["token", "step"])
def test_what_is_no_exception_does_not_end_the_thread(
    package: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def leave(*_: Any) -> Any:
        raise SystemExit(3)

    with Generator.open(package) as generator, Engine(generator) as engine:
        with monkeypatch.context() as broken:
            broken.setattr(Answer if place == "token" else Batch, place, leave)
            stream = engine.submit([3, 4], max_new_tokens=5, seconds=20)
            with pytest.raises(EngineError, match="SystemExit"):
                ids_of(stream)
        assert ids_of(engine.submit([3, 4], max_new_tokens=5)) == greedy([3, 4], 5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_is_gone(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise AssertionError("made up for a test")

    engine = Engine(generator)
    monkeypatch.setattr(engine, "_admit", broken)
    with pytest.raises(ClosedError):
        ids_of(engine.submit([3], max_new_tokens=5))
    with pytest.raises(ClosedError):
        engine.submit([3], max_new_tokens=5)
    engine.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork_a_request_is_refused(generator: Generator) -> None:
    with Engine(generator) as engine:
        child = os.fork()
        if child == 0:
            try:
                engine.submit([3], max_new_tokens=2)
            except ClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_contract_bounds_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_decoder(tmp_path / "package")
    path = package / "toy" / "cpu" / "contract.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bounds": {"batch": [1, 2]}}))
    sizes: list[int] = []
    step = Batch.step

    def counted(batch: Batch, ids: list[int]) -> Any:
        sizes.append(len(ids))
        return step(batch, ids)

    monkeypatch.setattr(Batch, "step", counted)
    with Engine(Generator.open(package)) as engine:
        streams = [engine.submit([3, one], max_new_tokens=12) for one in range(3)]
        assert [ids_of(stream) for stream in streams] == [greedy([3, i], 12) for i in range(3)]
    assert max(sizes) == 2


def test_a_deadline_may_be_larger_than_any_float() -> None:
    assert Stream(10**400).deadline > time.monotonic()
