"""`causal-attn generate`, without torch: tokens on stdout, everything else on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_decoder import logits_of, write_decoder

from causal_attn.cli import main
from causal_attn.cli.generate import _harmless


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    files = {"genai_config.json": {"model": {"context_length": 12}}}
    return str(write_decoder(tmp_path_factory.mktemp("toy") / "package", files=files))


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["generate", *arguments])
    out, err = capfd.readouterr()
    code = caught.value.code
    return code if isinstance(code, int) else 0, out, err


def greedy(ids: list[int], count: int) -> list[int]:
    for _ in range(count):
        ids = [*ids, int(logits_of(ids)[-1].argmax())]
    return ids[-count:]


def test_tokens_go_to_stdout(package: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, package, "--ids", "3,17,9", "-n", "5")
    assert (code, out.split()) == (0, [str(token) for token in greedy([3, 17, 9], 5)])
    assert err.startswith("5 tokens, ")
    assert "ended by length" in err


def test_json_is_alone_on_stdout(package: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, package, "--ids", "3,17,9", "--lookup", "3", "--json")
    values = json.loads(out)
    assert (code, err) == (0, "")
    # Ten more fit, the last of which nothing can follow.
    assert (values["ids"], values["finish"]) == (greedy([3, 17, 9], 10), "context")


def test_a_prompt_that_does_not_fit_is_an_error(
    package: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, package, "--ids", ",".join(["3"] * 13), "-n", "3")
    assert code != 0
    assert out.strip() == ""
    assert "12" in err, "the context is named"


def test_a_seed_repeats_it(package: str, capfd: pytest.CaptureFixture[str]) -> None:
    drawn = [
        run(capfd, package, "--ids", "3", "-n", "9", "--temperature", "9", "--seed", seed)[1]
        for seed in ("1", "1", "2")
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "`--prompt` or `--ids` must be given, or `--chat`"),
        (["--ids", "1,x"], "`--ids` must look like 1,2,3, got '1,x'"),
        (["--ids", "1", "-p", "x"], "`--ids` must be left out with `--prompt` or `--chat`"),
        (["--ids", "99"], "`--ids` must be tokens from 0 to 22, got 99"),
        (["-p", "text"], "must be tokens for a model without a tokenizer, got text"),
        (["--chat"], "`--chat` must be left out without a tokenizer"),
        (["--chat", "--json"], "`--prompt` or `--ids` must be given"),
        (["--ids", "1", "--top-p", "3"], "`--top-p` must be in (0, 1] or None, got 3.0"),
        (["--ids", "1", "-n", "0"], "`--max-new-tokens` must be an integer >= 1"),
    ],
)
def test_a_mistake_is_one_sentence(
    package: str, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capfd, package, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_mistyped_path_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, str(tmp_path / "nowhere"), "--ids", "1")
    assert code == 2
    assert "nowhere" in err


def test_what_a_terminal_obeys_is_not_written_and_every_script_is() -> None:
    text = "a\u3000b\u00a0c\u200cd 👨\u200d👩\n\t"
    assert "".join(filter(_harmless, text)) == text
    assert "".join(filter(_harmless, "a\x1b[2J\r\u202e\u2028\x9b")) == "a[2J"
