"""OpenAI's own client gets from the server what the generator gives in this process."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, APITimeoutError, OpenAI
from server_process import LETTERS, Server
from tokenizers import Tokenizer

from causal_attn.runtime.generate import Generator
from causal_attn.runtime.generate.text import Text


@pytest.fixture(scope="session")
def generator(language: Path) -> Iterator[Generator]:
    with Generator.open(language, intra_op_threads=1) as one:
        yield one


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.http}/v1", api_key="unused", max_retries=0) as one:
        yield one


def text_of(generator: Generator, prompt: Any, **options: Any) -> str:
    return "".join(token.text for token in generator.generate(prompt, **options))


def test_a_completion_is_the_generators(client: OpenAI, generator: Generator) -> None:
    answer = client.completions.create(model="letters", prompt="cab", max_tokens=9, temperature=0)
    assert answer.choices[0].text == text_of(generator, "cab", max_new_tokens=9)
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.total_tokens == 3 + answer.usage.completion_tokens
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_stream_is_the_same_text_piece_by_piece(client: OpenAI, generator: Generator) -> None:
    stream = client.completions.create(
        model="letters",
        prompt="cab",
        max_tokens=9,
        temperature=1.3,
        seed=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    wanted = text_of(generator, "cab", max_new_tokens=9, temperature=1.3, seed=5)
    assert "".join(pieces) == wanted
    assert len(pieces) > 1
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 3


def test_a_chat_goes_through_the_template(client: OpenAI, generator: Generator) -> None:
    messages: Any = [
        {"role": "system", "content": "ab"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "cd"}, {"type": "text", "text": "e"}],
        },
    ]
    assert generator.text is not None
    prompt = generator.text.chat(
        [{"role": "system", "content": "ab"}, {"role": "user", "content": "cde"}]
    )
    wanted = text_of(generator, prompt, max_new_tokens=7)
    whole = client.chat.completions.create(
        model="letters", messages=messages, max_completion_tokens=7
    )
    assert whole.choices[0].message.content == wanted
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(
        model="letters", messages=messages, max_tokens=7, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted


def test_tokens_go_in_and_come_out(client: OpenAI, generator: Generator) -> None:
    answer = client.completions.create(
        model="letters", prompt=[2, 0, 1], max_tokens=5, extra_body={"return_token_ids": True}
    )
    wanted = [token.id for token in generator.generate([2, 0, 1], max_new_tokens=5)]
    assert answer.choices[0].model_extra == {"token_ids": wanted}


def test_a_stop_string_ends_it(client: OpenAI, generator: Generator) -> None:
    everything = text_of(generator, "cab", max_new_tokens=9, ends=())
    stop = everything[3]
    answer = client.completions.create(model="letters", prompt="cab", max_tokens=9, stop=stop)
    assert answer.choices[0].text == everything[: everything.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_stop_string_that_is_a_special_token_ends_it(generator: Generator) -> None:
    assert generator.text is not None
    tokenizer = Tokenizer.from_str(generator.text.tokenizer.to_str())
    ids = [token.id for token in generator.generate("cab", max_new_tokens=9, ends=())]
    word: Any = tokenizer.id_to_token(ids[3])
    tokenizer.add_special_tokens([word])
    special = Generator(generator.decoder.session, text=Text(tokenizer))
    prompt = generator.text.encode("cab")
    tokens = list(special.generate(prompt, max_new_tokens=9, ends=(), stop=word))
    assert [token.id for token in tokens] == ids[: ids.index(ids[3]) + 1]
    assert tokens[-1].finish == "stop"
    assert word not in "".join(token.text for token in tokens)


def test_log_probabilities_are_the_generators(client: OpenAI, generator: Generator) -> None:
    tokens = list(generator.generate("cab", max_new_tokens=4, logprobs=2))
    shares = [token.logprob for token in tokens]
    answer = client.completions.create(model="letters", prompt="cab", max_tokens=4, logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == pytest.approx(shares, abs=1e-5)
    assert found.top_logprobs is not None
    assert [len(one) for one in found.top_logprobs] == [2] * len(tokens)
    chat = client.chat.completions.create(
        model="letters",
        messages=[{"role": "user", "content": "c"}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    content = chat.choices[0].logprobs and chat.choices[0].logprobs.content
    assert content
    assert all(len(one.top_logprobs) == 2 for one in content)
    assert "".join(one.token for one in content) == chat.choices[0].message.content


def test_many_at_once_do_not_change_one_another(client: OpenAI, generator: Generator) -> None:
    prompts = [LETTERS[start : start + 5] for start in range(12)]

    def asked(prompt: str) -> str:
        answer = client.completions.create(model="letters", prompt=prompt, max_tokens=12)
        return answer.choices[0].text

    with ThreadPoolExecutor(12) as pool:
        came = list(pool.map(asked, prompts))
    assert came == [text_of(generator, prompt, max_new_tokens=12) for prompt in prompts]


def test_models_are_those_of_language(client: OpenAI, server: Server) -> None:
    assert [model.id for model in client.models.list()] == ["letters", "endless"]
    assert client.models.retrieve("letters").owned_by == "causal-attn"
    with OpenAI(base_url=f"{server.http}/openai/v1", api_key="unused") as other:
        assert [model.id for model in other.models.list()] == ["letters", "endless"]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "attention"}, 404, "`model` must be a language model"),
        ({"model": 3}, 400, "`model` must be"),
        ({"prompt": None}, 400, "`prompt` must be"),
        ({"prompt": ""}, 400, "`prompt` must be"),
        ({"prompt": ["a", "b"]}, 400, "`prompt` must be one text"),
        ({"prompt": [1, 99]}, 400, "tokens from 0 to 22, got 99"),
        ({"prompt": [True]}, 400, "`prompt` must be"),
        ({"max_tokens": 0}, 400, "`max_tokens` must be an integer from 1"),
        ({"max_tokens": 10**9}, 400, "`max_tokens` must be an integer from 1 to 4096"),
        ({"max_tokens": 2.5}, 400, "`max_tokens` must be a number of tokens"),
        ({"temperature": -1}, 400, "`temperature` must be"),
        ({"temperature": "hot"}, 400, "`temperature` must be"),
        ({"top_p": 2}, 400, "`top_p` must be"),
        ({"seed": -1}, 400, "`seed` must be"),
        ({"stop": [1]}, 400, "`stop` must be"),
        ({"stop": ["x"] * 17}, 400, "`stop` must be"),
        ({"logprobs": 100}, 400, "`logprobs` must be"),
        ({"n": 2}, 400, "`n` must be 1"),
        ({"logit_bias": {"1": 2}}, 400, "`logit_bias` must be"),
        ({"stream": "yes"}, 400, "`stream` must be"),
        ({"wishes": 3}, 400, "must be left out"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(
    server: Server, change: dict[str, Any], status: int, message: str
) -> None:
    body = {"model": "letters", "prompt": "cab", "max_tokens": 2} | change
    request = urllib.request.Request(
        f"{server.http}/v1/completions", json.dumps(body).encode(), method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    error = json.loads(caught.value.read())["error"]
    assert caught.value.code == status
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        [{"role": "user"}],
        [{"content": "a"}],
        [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "file:///etc"}}],
            }
        ],
        [{"role": "user", "content": "a", "tool_calls": []}],
    ],
)
def test_messages_that_are_none_are_refused(client: OpenAI, messages: Any) -> None:
    with pytest.raises(APIStatusError, match="messages") as caught:
        client.chat.completions.create(model="letters", messages=messages)
    assert caught.value.status_code == 400


def running(server: Server) -> int:
    """Answers that the engine of ``endless`` is at."""
    with urllib.request.urlopen(server.http + "/metrics", timeout=30) as answer:
        page = answer.read().decode()
    (line,) = (one for one in page.splitlines() if "answers_running" in one and "endless" in one)
    return int(float(line.split()[-1]))


def test_who_goes_away_frees_the_engine(client: OpenAI, server: Server) -> None:
    stream = client.completions.create(
        model="endless",
        prompt="cab",
        max_tokens=4096,
        stream=True,
        extra_headers={"X-Request-Id": "gone-stream"},
    )
    next(iter(stream))
    assert running(server) == 1
    stream.close()
    assert server.logged(request_id="gone-stream")["outcome"] == "vanished"
    with pytest.raises(APITimeoutError):
        client.completions.create(
            model="endless",
            prompt="cab",
            max_tokens=4096,
            timeout=0.2,
            extra_headers={"X-Request-Id": "gone-whole"},
        )
    assert server.logged(request_id="gone-whole")["outcome"] == "vanished"
    deadline = time.monotonic() + 10
    while running(server) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running(server) == 0
