"""The page at / says what the packages say, and shows which tokens a token saw."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Tab, browsing
from server_process import LETTERS, Server, start, write_language_model

from causal_attn import models
from causal_attn.runtime import load
from causal_attn.runtime.generate import Generator

TOKEN = "a-token-of-tests"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model whose weights come out."""
    root = tmp_path_factory.mktemp("watched") / "package"
    return write_language_model(root, ends=False, attentions=True)


@pytest.fixture(scope="module")
def guarded(watched: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token; it serves ``attention`` and ``watched``."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    running = start(
        f"attention={models.path('causal_attention')}",
        f"watched={watched}",
        "--token-file",
        str(file),
    )
    yield running
    assert running.terminate() == 0
    assert "Traceback" not in "".join(running.other)


def ask(server: Server, path: str, body: Any = None, token: str | None = TOKEN) -> Any:
    request = urllib.request.Request(
        server.http + path,
        None if body is None else json.dumps(body).encode(),
        {} if token is None else {"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def refused(server: Server, path: str, body: Any = None, token: str | None = TOKEN) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, path, body, token)
    assert caught.value.code < 500
    return f"{caught.value.code} {caught.value.read().decode()}"


def test_packages_are_described_as_they_are(guarded: Server) -> None:
    attention, watched = ask(guarded, "/page/models")["models"]
    with load(models.path("causal_attention")) as session:
        assert session.certificate is not None
        assert attention["certificate"]["verdict"] == str(session.certificate.verdict)
        assert session.certificate.digest.startswith(attention["certificate"]["digest"])
        assert len(attention["certificate"]["checks"]) == len(session.certificate.checks)
        assert [tensor["name"] for tensor in attention["contract"]["inputs"]] == ["q", "k", "v"]
        assert sum(part["nodes"] for part in attention["placement"]) == len(session.placement)
    assert attention["language"] is None
    assert watched["language"] == {
        "text": True, "chat": True, "vocabulary": 23, "longest": None, "heads": [1],
    }  # fmt: skip
    assert [tensor["cache"] for tensor in watched["contract"]["inputs"]] == [False] * 3 + [True]


@pytest.mark.parametrize("name", ["attention", "watched"])
def test_what_each_row_saw_is_looked_at(guarded: Server, name: str) -> None:
    reach = ask(guarded, f"/page/models/{name}/reach")
    assert np.array_equal(reach["rows"], np.tri(12, dtype=bool))
    assert reach["output"] == {"attention": "output", "watched": "logits"}[name]


def test_weights_are_those_of_the_graph(guarded: Server, watched: Path) -> None:
    ids = [2, 0, 1, 7, 7]
    given = ask(guarded, "/page/models/watched/attentions", {"ids": ids, "layer": 0, "head": 0})
    weights = np.array(given["weights"])
    assert weights.shape == (5, 5)
    assert np.allclose(weights.sum(axis=1), 1, atol=1e-5)
    assert (weights[np.triu_indices(5, 1)] == 0).all()
    with load(watched) as session:
        feeds = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, 5), np.int64),
            "position_ids": np.arange(5)[None],
            "past_key_values.0.key": np.zeros((1, 1, 0, 8), np.float32),
        }
        wanted = session.run(feeds, ["attentions.0"])["attentions.0"][0, 0]
    assert np.allclose(weights, wanted, atol=1e-6)


def test_text_is_cut_into_tokens(guarded: Server) -> None:
    said = ask(guarded, "/page/models/watched/tokens", {"text": "cab"})
    assert said == {"ids": [2, 0, 1], "words": ["c", "a", "b"]}
    chat = ask(guarded, "/page/models/watched/tokens", {"text": "cab", "chat": True})
    assert chat["words"] == ["c", "a", "b", "a"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("watched/attentions", {"ids": [1], "layer": 1, "head": 0}, "`layer` must be from 0 to 0"),
        ("watched/attentions", {"ids": [1], "layer": 0, "head": 3}, "`head` must be from 0 to 0"),
        ("watched/attentions", {"ids": [99], "layer": 0, "head": 0}, "from 0 to 22, got 99"),
        ("watched/attentions", {"ids": [], "layer": 0, "head": 0}, "at least one token"),
        ("watched/attentions", {"ids": [1] * 1025, "layer": 0, "head": 0}, "at most 1024"),
        ("watched/attentions", {"ids": [1], "layer": True, "head": 0}, "`layer` must be an int"),
        ("watched/attentions", [1], "must be a JSON object"),
        ("watched/tokens", {"text": 3}, "`text` must be a string"),
        ("attention/tokens", {"text": "a"}, "must be a language model"),
        ("nobody/tokens", {"text": "a"}, "404"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    guarded: Server, path: str, body: Any, sentence: str
) -> None:
    assert sentence in refused(guarded, f"/page/models/{path}", body)


def test_weights_that_do_not_come_out_are_told(server: Server) -> None:
    body = {"ids": [1], "layer": 0, "head": 0}
    said = refused(server, "/page/models/letters/attentions", body)
    assert "--output-attentions" in said


def test_the_token_guards_what_is_told_and_not_the_files(guarded: Server) -> None:
    assert refused(guarded, "/page/models", token=None).startswith("401")
    assert refused(guarded, "/page/models/attention/reach", token=None).startswith("401")
    with urllib.request.urlopen(f"{guarded.http}/") as answer:
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert b'<script type="module" src=' in answer.read()


def test_only_requests_of_clients_are_among_the_times(guarded: Server) -> None:
    def answered() -> float:
        seconds = ask(guarded, "/page/models")["seconds"]
        return float(seconds["http"][-1][1]) if "http" in seconds else 0.0

    before = answered()
    ask(guarded, "/page/models/attention/reach")
    assert answered() == before
    ask(guarded, "/v2")
    assert answered() == before + 1


@pytest.mark.skipif(
    CHROMIUM is None, reason="neither chromium nor chromium-browser is on the PATH"
)
def test_a_person_reads_writes_and_clicks(guarded: Server, watched: Path, tmp_path: Path) -> None:
    with browsing(tmp_path / "profile") as tab:
        tab.open(f"{guarded.http}/")
        _give_the_token(tab)
        text = tab.until("document.querySelector('#model figure') && document.body.innerText")
        assert "causal by its certificate" in text
        assert "No row sees its future." in text
        cells = tab.evaluate("document.querySelectorAll('#model figure rect.seen').length")
        assert cells == 12 * 13 // 2
        assert tab.evaluate("document.querySelectorAll('#model figure rect.leak').length") == 0
        tab.screenshot(tmp_path / "attention.png")

        tab.evaluate("document.querySelectorAll('nav button')[1].click()")
        tab.until("document.querySelector('.writing textarea') !== null")
        tab.evaluate(
            "document.querySelector('.writing textarea').value = 'cab';"
            "document.querySelector('.writing input[type=checkbox]').checked = false;"
            "document.querySelector('.writing input[type=number]').value = 9;"
            "document.querySelector('.writing form').requestSubmit()"
        )
        tab.until("document.querySelectorAll('.writing .text button.new').length === 9")
        written = tab.evaluate("document.querySelector('.writing .text').textContent")
        with Generator.open(watched, intra_op_threads=1) as generator:
            tokens = [token.id for token in generator.generate("cab", max_new_tokens=9)]
        words = "".join(LETTERS[token] if token < len(LETTERS) else "⟨22⟩" for token in tokens)
        assert written == "cab" + words

        tab.evaluate("document.querySelectorAll('.writing .text button')[4].click()")
        tab.until(
            "document.body.innerText.includes('Token 4 could see the 5 tokens up to itself')"
        )
        unseen = tab.evaluate("document.querySelectorAll('.writing .text .unseen').length")
        assert unseen == 12 - 5
        ids = [2, 0, 1, *tokens]
        row = ask(guarded, "/page/models/watched/attentions", {"ids": ids, "layer": 0, "head": 0})[
            "weights"
        ][4]
        assert f"weight {row[2]:.4f}" in tab.evaluate(
            "document.querySelectorAll('.writing .text button')[2].title"
        )
        tab.until("document.body.innerText.includes('requests/s')")
        tab.screenshot(tmp_path / "watched.png")
        expected = "401 (Unauthorized)"
        assert [said for said in tab.complaints if expected not in said] == []


def _give_the_token(tab: Tab) -> None:
    tab.until("document.querySelector('#token:not([hidden])') !== null")
    assert tab.evaluate("document.getElementById('models').children.length") == 0
    tab.evaluate(
        f"document.querySelector('#token input').value = '{TOKEN}';"
        "document.querySelector('#token form, #token').requestSubmit()"
    )
