"""Generation: the tokens of a whole run without a cache, whatever way they are asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_decoder import VOCABULARY, logits_of, write_decoder

from causal_attn.errors import (
    ContextError,
    InputError,
    PackageError,
    StoppedError,
    UsageError,
)
from causal_attn.runtime import Cancellation, load
from causal_attn.runtime.generate import Decoding, Generator, Sampling, cache, decoding
from causal_attn.runtime.ort import value_of

PROMPT = [3, 17, 9, 4]


@pytest.fixture(scope="module", params=[False, True], ids=["growing", "fixed"])
def package(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return write_decoder(tmp_path_factory.mktemp("toy") / "package", fixed=request.param)


@pytest.fixture
def generator(package: Path) -> Iterator[Generator]:
    with Generator.open(package) as opened:
        yield opened


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits_of(ids)[-1].argmax()))
    return ids[len(prompt) :]


def ids_of(tokens: Iterator[Any]) -> list[int]:
    return [token.id for token in tokens]


def test_greedy_is_that_of_the_whole_sequence(generator: Generator) -> None:
    assert ids_of(generator.generate(PROMPT, max_new_tokens=30)) == greedy(PROMPT, 30)


def test_logits_alone_of_the_last_token_are_enough(tmp_path: Path) -> None:
    with Generator.open(write_decoder(tmp_path / "last", last=True)) as generator:
        assert ids_of(generator.generate(PROMPT, max_new_tokens=9)) == greedy(PROMPT, 9)
        with pytest.raises(UsageError, match="last token alone"):
            generator.generate(PROMPT, lookup=2)


def test_a_long_prompt_goes_in_by_chunks(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "CHUNK", 3)
    prompt = [index % VOCABULARY for index in range(11)]
    assert ids_of(generator.generate(prompt, max_new_tokens=5)) == greedy(prompt, 5)


@pytest.mark.parametrize("lookup", [1, 3, 8])
def test_lookup_gives_the_tokens_of_greedy_in_fewer_calls(
    generator: Generator, lookup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    call = generator.decoder.call

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return call(*arguments)

    monkeypatch.setattr(generator.decoder, "call", counted)
    wanted = greedy(PROMPT, 60)
    assert ids_of(generator.generate(PROMPT, max_new_tokens=60, lookup=lookup)) == wanted
    assert calls < 60


def test_the_end_token_is_the_last(generator: Generator) -> None:
    wanted = greedy(PROMPT, 30)
    end = wanted[7]
    tokens = list(generator.generate(PROMPT, max_new_tokens=30, ends=[end]))
    assert [token.id for token in tokens] == wanted[: wanted.index(end) + 1]
    assert [token.finish for token in tokens[-2:]] == [None, "stop"]


def test_max_new_tokens_is_the_length(generator: Generator) -> None:
    (token,) = generator.generate(PROMPT, max_new_tokens=1)
    assert token.finish == "length"


def test_defaults_come_from_the_folder(tmp_path: Path) -> None:
    end = greedy(PROMPT, 3)[2]
    files = {
        "generation_config.json": {"eos_token_id": [end], "temperature": 0.7, "top_k": 5},
        "genai_config.json": {"model": {"context_length": 64}},
    }
    with Generator.open(write_decoder(tmp_path / "package", files=files)) as generator:
        # Without do_sample the other options do nothing, as in the library that writes them.
        assert generator.defaults.sampling == Sampling(temperature=0.0, top_k=5)
        assert generator.defaults.context == 64
        assert list(generator.generate(PROMPT))[-1].finish == "stop"


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("generation_config.json", {"eos_token_id": "x"}, "`eos_token_id` must be tokens"),
        ("generation_config.json", {"do_sample": True, "top_p": 7}, "`top_p` must be in"),
        ("generation_config.json", ["a"], "must be an object"),
        ("genai_config.json", {"model": {"context_length": -1}}, "`context_length` must be"),
        ("genai_config.json", {"model": 3}, "must be an object"),
    ],
)
def test_defaults_that_cannot_be_are_refused(
    tmp_path: Path, name: str, content: Any, match: str
) -> None:
    with pytest.raises(PackageError, match=match):
        Generator.open(write_decoder(tmp_path / "package", files={name: content}))


def test_a_full_context_says_what_came(tmp_path: Path) -> None:
    files = {"genai_config.json": {"model": {"context_length": 10}}}
    with Generator.open(write_decoder(tmp_path / "package", files=files)) as generator:
        found: list[int] = []
        tokens = generator.generate(PROMPT, lookup=4)
        with pytest.raises(ContextError, match="at most 10 tokens") as caught:
            found.extend(token.id for token in tokens)
        # The token after the last one that fits is known, and nothing can follow it.
        assert found == greedy(PROMPT, 7)
        assert caught.value.tokens == (*PROMPT, *found)
        with pytest.raises(ContextError):
            list(generator.generate(PROMPT * 3))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_capacity_is_the_end_of_every_sequence(tmp_path: Path, fixed: bool) -> None:
    package = write_decoder(tmp_path / "package", fixed=fixed)
    with Generator.open(package, capacity=9) as generator:
        found: list[int] = []
        with pytest.raises(ContextError, match="at most 9 tokens") as caught:
            found.extend(token.id for token in generator.generate(PROMPT))
        assert found == greedy(PROMPT, 6)
        assert caught.value.tokens == (*PROMPT, *found)
    for wrong in (0, True, 2.0):
        with pytest.raises(UsageError, match="`capacity` must be an integer >= 1"):
            Generator.open(package, capacity=wrong)  # type: ignore[arg-type]


class TestFixedCache:
    """Buffers that are written in place."""

    NAME = "past_key_values.0.key"

    @pytest.fixture
    def generator(self, tmp_path: Path) -> Iterator[Generator]:
        with Generator.open(write_decoder(tmp_path / "package", fixed=True)) as opened:
            yield opened

    def test_a_call_writes_behind_the_tokens_of_before(self, generator: Generator) -> None:
        sequence = generator.start()
        sequence.feed(PROMPT)
        buffer = sequence.past[self.NAME]
        before = buffer.numpy().copy()
        sequence.feed([5])
        assert sequence.past[self.NAME].data_ptr() == buffer.data_ptr()
        changed = (buffer.numpy() != before).any(-1)[0, 0]
        assert changed.nonzero()[0].tolist() == [len(PROMPT)]

    def test_buffers_become_larger(
        self, generator: Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "_LEAST", 2)
        sequence = generator.start()
        ids, sizes = list(PROMPT), set()
        logits = sequence.feed(ids)
        for _ in range(30):
            ids.append(int(logits.argmax()))
            logits = sequence.feed(ids[-1:])
            sizes.add(sequence.past[self.NAME].shape()[2])
        assert ids == [*PROMPT, *greedy(PROMPT, 30)]
        assert len(sizes) > 3

    def test_a_capacity_is_taken_at_once(self, generator: Generator) -> None:
        twin = Generator(generator.decoder.session, capacity=50)
        sequence = twin.start()
        assert sequence.past[self.NAME].shape() == [1, 1, 50, 8]
        pointer = sequence.past[self.NAME].data_ptr()
        sequence.feed(PROMPT)
        sequence.feed([1] * 46)
        assert sequence.past[self.NAME].data_ptr() == pointer
        with pytest.raises(ContextError):
            sequence.feed([1])

    def test_a_copy_goes_its_own_way(self, generator: Generator) -> None:
        sequence = generator.start()
        sequence.feed(PROMPT)
        twin = sequence.copy()
        for one, new in ((sequence, 5), (twin, 6), (sequence, 7), (twin, 8)):
            found = one.feed([new])
            np.testing.assert_allclose(found, logits_of(one.tokens)[-1], atol=1e-4)

    def test_what_is_taken_back_leaves_nothing(self, generator: Generator) -> None:
        sequence = generator.start()
        sequence.feed(PROMPT)
        sequence.feed([5, 6])
        held = sequence.past[self.NAME].numpy().copy()
        held[:, :, len(PROMPT) :] = np.nan
        sequence._past = {self.NAME: value_of(held)}
        sequence.rewind(2)
        np.testing.assert_allclose(sequence.feed([8]), logits_of([*PROMPT, 8])[-1], atol=1e-4)

    def test_nothing_else_is_written_over(self, generator: Generator) -> None:
        session = generator.decoder.session
        past = dict(generator.decoder.nothing(1))
        rest = {
            tensor.name: value_of(np.zeros((1, 1), np.int64))
            for tensor in session.contract.inputs
            if tensor.name not in past
        }
        with pytest.raises(InputError, match="`share` must be out of"):
            session.run_shared({**past, **rest}, share={"logits": self.NAME})


def test_one_seed_is_one_answer(generator: Generator) -> None:
    def drawn(seed: int) -> list[int]:
        return ids_of(generator.generate(PROMPT, max_new_tokens=20, temperature=3.0, seed=seed))

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(5)}) == 5


def test_logprobs_are_those_of_the_model(generator: Generator) -> None:
    token = next(generator.generate(PROMPT, temperature=5.0, seed=0, logprobs=3))
    logits = logits_of(PROMPT)[-1]
    shares = logits - logits.max()
    shares -= np.log(np.exp(shares).sum())
    assert token.logprob == pytest.approx(shares[token.id], abs=1e-5)
    assert token.likeliest is not None
    assert list(token.likeliest) == np.argsort(-shares)[:3].tolist()
    assert list(token.likeliest.values()) == pytest.approx(np.sort(shares)[::-1][:3], abs=1e-5)


def test_a_cancellation_ends_it_between_tokens(generator: Generator) -> None:
    tokens = generator.generate(PROMPT)
    with Cancellation() as limit:
        assert [next(tokens).id for _ in range(5)] == greedy(PROMPT, 5)
        limit.cancel()
        with pytest.raises(StoppedError):
            next(tokens)


def test_threads_generate_side_by_side(generator: Generator) -> None:
    wanted = {first: greedy([first, 2], 25) for first in range(6)}
    found: dict[int, list[int]] = {}

    def run(first: int) -> None:
        found[first] = ids_of(generator.generate([first, 2], max_new_tokens=25))

    threads = [threading.Thread(target=run, args=(first,)) for first in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted


def test_a_sequence_goes_back(generator: Generator) -> None:
    sequence = generator.start()
    sequence.feed(PROMPT)
    sequence.feed([5, 6])
    sequence.rewind(2)
    assert sequence.tokens == PROMPT
    np.testing.assert_allclose(sequence.feed([8]), logits_of([*PROMPT, 8])[-1], atol=1e-4)
    with pytest.raises(UsageError, match="`count` must be 0 to 5"):
        sequence.rewind(6)


def test_a_call_that_fails_changes_nothing(generator: Generator) -> None:
    sequence = Decoding(generator.decoder, context=6)
    sequence.feed(PROMPT)
    with pytest.raises(ContextError):
        sequence.feed([1, 2, 3])
    with pytest.raises(InputError):
        sequence.feed([VOCABULARY])
    assert (sequence.tokens, sequence.room) == (PROMPT, 2)
    np.testing.assert_allclose(
        sequence.feed_all([1, 2]), logits_of([*PROMPT, 1, 2])[4:], atol=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"prompt": []}, "at least one token"),
        ({"prompt": [VOCABULARY]}, "from 0 to 22"),
        ({"prompt": [-1]}, "from 0 to 22"),
        ({"prompt": [1.5]}, "from 0 to 22"),
        ({"prompt": [True]}, "`prompt` must be tokens from 0 to 22, got True"),
        ({"prompt": None}, "at least one token"),
        ({"prompt": "text"}, "without a tokenizer"),
        ({"stop": "x"}, "without a tokenizer"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be an integer >= 1"),
        ({"logprobs": -1}, "`logprobs` must be an integer >= 0"),
        ({"temperature": -1}, "`temperature` must be >= 0"),
        ({"temperature": float("nan")}, "`temperature` must be >= 0"),
        ({"top_p": 0.0}, "`top_p` must be in"),
        ({"min_p": 2}, "`min_p` must be in"),
        ({"top_k": -1}, "`top_k` must be an integer >= 0"),
        ({"seed": -3}, "`seed` must be an integer >= 0"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be from 1e-100 to 1e100"),
        ({"warmth": 1}, "got \\['warmth'\\]"),
        ({"lookup": None}, "`lookup` must be an integer >= 0"),
        ({"ends": [VOCABULARY]}, "`ends` must be tokens from 0 to 22"),
        ({"ends": [-1]}, "`ends` must be tokens from 0 to 22"),
        ({"lookup": 2, "temperature": 1.0}, "`lookup` must be 0 .* temperature 1.0"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    generator: Generator, arguments: dict[str, Any], match: str
) -> None:
    given: dict[str, Any] = {"prompt": PROMPT, **arguments}
    with pytest.raises(UsageError, match=match):
        generator.generate(**given)


def test_another_model_is_refused(attention: Path) -> None:
    with load(attention) as session, pytest.raises(UsageError, match="inputs `input_ids`"):
        Generator(session)


def test_ends_may_come_from_an_iterator(generator: Generator) -> None:
    second = greedy(PROMPT, 2)[1]
    answer = generator.generate(PROMPT, max_new_tokens=9, ends=iter([second]))  # type: ignore[arg-type]
    assert ids_of(answer) == greedy(PROMPT, 2)


def test_a_file_of_defaults_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "package")
    os.mkfifo(folder / "toy" / "cpu" / "generation_config.json")
    with pytest.raises(PackageError, match="must be a regular file"):
        Generator.open(folder)
