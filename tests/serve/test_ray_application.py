"""A door with replicas that are lost as the test says, and mistakes before any of it starts.

In a process of its own: Triton's client, which other tests need, and the SDK define the same
messages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'causal-attn[ray]'")

ALONE = Path(__file__).with_name("door_alone.py")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    run = subprocess.run([sys.executable, str(ALONE)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return loaded


def test_what_a_lost_replica_did_not_answer_another_one_does(found: dict[str, Any]) -> None:
    retried = found["doors"]["retried"]
    assert (retried["status"], retried["body"], retried["attempts"]) == (200, "right", 2)
    assert retried["ids"] == ["mine"]


def test_a_request_that_ends_every_replica_is_given_up(found: dict[str, Any]) -> None:
    given_up = found["doors"]["given up"]
    assert (given_up["status"], given_up["attempts"]) == (503, 2)
    assert "Send it again later" in json.loads(given_up["body"])["error"]["message"]


def test_a_stream_that_began_ends_in_an_error(found: dict[str, Any]) -> None:
    stream = found["doors"]["in the middle of a stream"]
    first, last = stream["body"].strip().split("\n\n")
    assert (first, stream["attempts"]) == ("data: 1", 1)
    assert "middle of the answer" in json.loads(last.removeprefix("data: "))["error"]["message"]


def test_another_answer_that_began_is_cut_off(found: dict[str, Any]) -> None:
    assert found["doors"]["in the middle"]["broken"]


@pytest.mark.parametrize(
    ("case", "status", "words"),
    [
        ("full", 503, "may wait"),
        ("too late", 503, "server's time"),
        ("elsewhere", 200, ""),
        ("live", 200, "live"),
        ("not ready", 503, "false"),
        ("metrics", 404, "Ray"),
    ],
)
def test_the_door_answers(found: dict[str, Any], case: str, status: int, words: str) -> None:
    answer = found["doors"][case]
    assert answer["status"] == status
    assert words in answer["body"]
    assert set(answer["paths"]) <= {"/v1/completions", "/v2/health/ready"}


def test_mistakes_are_told_before_anything_starts(found: dict[str, Any]) -> None:
    words = ("`replicas` must", "`doors` must", "`attempts` must", "`limits` must")
    for message, wanted in zip(
        found["mistakes"], (*words, "`token` must", "/nowhere"), strict=True
    ):
        assert wanted in message
