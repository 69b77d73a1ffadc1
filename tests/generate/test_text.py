"""Text in and out: the model's tokenizer, its chat template, stop strings over pieces of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from causal_attn.errors import PackageError, UsageError
from causal_attn.runtime.generate.answer import Answer
from causal_attn.runtime.generate.stops import Stops
from causal_attn.runtime.generate.text import Text

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save_bytes_tokenizer(folder: Path, **config: Any) -> None:
    """A tokenizer of single bytes: every character beyond ASCII is several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **config}))


@pytest.fixture
def text(tmp_path: Path) -> Text:
    save_bytes_tokenizer(tmp_path, chat_template=TEMPLATE)
    read = Text.read(tmp_path)
    assert read is not None
    return read


def test_pieces_are_the_text_and_never_half_a_character(text: Text) -> None:
    wanted = "naïve — 日本語 🙂."
    ids = text.encode(wanted)
    assert len(ids) == len(wanted.encode())
    pieces = text.pieces()
    came = [pieces.add(token) for token in ids]
    assert "".join(came) == wanted == text.decode(ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(came)
    assert came.count("") == len(wanted.encode()) - len(wanted)


def test_a_stop_string_may_come_in_pieces(text: Text) -> None:
    pieces, stops, shown = text.pieces(), Stops(["日本"]), ""
    for token in text.encode("in 日本語"):
        shown += stops.add(pieces.add(token))
    assert (shown, stops.hit) == ("in ", True)


def test_a_conversation_goes_through_the_template(text: Text) -> None:
    ids = text.chat([{"role": "user", "content": "hi"}])
    # Special tokens are one token each, and decoding leaves them out.
    assert text.decode(ids) == "user:hiassistant:"
    assert ids.count(text.tokenizer.token_to_id("</s>")) == 1


def test_a_template_of_its_own_file_is_taken_first(tmp_path: Path) -> None:
    save_bytes_tokenizer(tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text("new")
    read = Text.read(tmp_path)
    assert read is not None
    assert read.decode(read.chat([])) == "new"


def named(**templates: str) -> list[dict[str, str]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


@pytest.mark.parametrize("tools", [None, [], [{"name": "clock"}]])
@pytest.mark.parametrize("templates", [{}, {"rag": "r"}, {"tool_use": "t"}], ids=str)
def test_of_several_templates_the_librarys_is_taken(
    tmp_path: Path, templates: dict[str, str], tools: Any
) -> None:
    several = named(default="d", **templates)
    save_bytes_tokenizer(tmp_path, chat_template=several)
    read = Text.read(tmp_path)
    assert read is not None
    assert read.chats
    library = PreTrainedTokenizerFast(tokenizer_object=read.tokenizer, chat_template=several)
    assert read.decode(read.chat([], tools=tools)) == library.get_chat_template(tools=tools)


def test_templates_without_a_default_are_named(tmp_path: Path) -> None:
    save_bytes_tokenizer(tmp_path, chat_template=named(tool_use="t", rag="r"))
    read = Text.read(tmp_path)
    assert read is not None
    assert read.decode(read.chat([], tools=[])) == "t"
    with pytest.raises(UsageError, match=r"named default, got \['rag', 'tool_use'\]"):
        read.chat([])


@pytest.mark.parametrize("wrong", [3, ["x"], [{"name": "default"}], {"default": "d"}], ids=str)
def test_templates_that_are_none_are_refused(tmp_path: Path, wrong: Any) -> None:
    save_bytes_tokenizer(tmp_path, chat_template=wrong)
    with pytest.raises(PackageError, match="`chat_template` of tokenizer_config"):
        Text.read(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no system message') }}",
        "{{ 1 / 0 }}",
        "{% for %}",
    ],
)
def test_a_template_reaches_nothing(tmp_path: Path, template: str) -> None:
    save_bytes_tokenizer(tmp_path, chat_template=template)
    read = Text.read(tmp_path)
    assert read is not None
    with pytest.raises(UsageError, match="`messages` must be what the model's chat template"):
        read.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("messages", ["hi", [{"role": "user"}], ["hi"]])
def test_messages_are_roles_and_contents(text: Text, messages: Any) -> None:
    with pytest.raises(UsageError, match="must be a list of dicts with role and content"):
        text.chat(messages)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    save_bytes_tokenizer(tmp_path)
    read = Text.read(tmp_path)
    assert read is not None
    with pytest.raises(UsageError, match="got one without"):
        read.chat([{"role": "user", "content": "hi"}])


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    assert Text.read(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text('{"any": "text"}')
    with pytest.raises(PackageError, match="must be a tokenizer"):
        Text.read(tmp_path)


@pytest.mark.parametrize("count", range(1, 12))
def test_an_answer_that_ends_in_a_character_is_what_its_tokens_decode_to(
    text: Text, count: int
) -> None:
    ids = text.encode("a日🙂é")
    assert len(ids) == 10
    answer = Answer(
        text=text, stops=Stops(["b"]), ends=frozenset(), limit=min(count, 10), likeliest=None
    )
    tokens = [answer.token(one, np.zeros(1, np.float32)) for one in ids[:count]]
    assert tokens[-1].finish == "length"
    assert "".join(token.text for token in tokens) == text.decode(ids[:count])


def test_half_a_character_is_no_text(text: Text) -> None:
    with pytest.raises(UsageError, match="`text` must be Unicode"):
        text.encode("\ud83d")


def test_messages_are_a_list(text: Text) -> None:
    wrongs: list[Any] = [({"role": "user", "content": "hi"} for _ in range(1)), 5, b"hi", {}]
    for wrong in wrongs:
        with pytest.raises(UsageError, match="`messages` must be a list"):
            text.chat(wrong)
