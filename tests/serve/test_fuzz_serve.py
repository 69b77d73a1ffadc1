"""Some hundred damaged requests, with the script that sends thousands; and that it can tell."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from damaged_requests import Answer, Bad, judge, with_values_exchanged

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_serve"


def test_nothing_is_wrong_with_some_hundred_requests() -> None:
    command = [sys.executable, str(SCRIPT), "--requests", "300", "--seed", "3", "--json"]
    run = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(run.stdout)
    assert (found["wrong"], found["failures_in_the_log"], found["still_held"]) == ([], [], {})
    assert (found["requests"], found["exit_code"], run.returncode) == (300, 0, 0)
    assert len(found["answers"]) == 10


@pytest.mark.parametrize(
    ("status", "said", "refused", "wrong"),
    [
        ("500", "{}", False, "the server failed"),
        ("503", '{"error": "no"}', False, "the server failed"),
        ("cut", "", False, "the server failed"),
        ("INTERNAL", "It broke.", False, "the server failed"),
        ("200", "{}", True, "a bad request was taken"),
        ("OK", "", True, "a bad request was taken"),
        ("400", '{"error": "In /usr/lib/x.py."}', True, "an error shows internals"),
        ("400", '{"error": {"message": "Traceback: so."}}', True, "an error shows internals"),
        ("404", '{"error": "nope"}', True, "an error is no sentence"),
        ("INVALID_ARGUMENT", "", True, "an error is no sentence"),
        ("503", '{"error": "Busy. Send it again later."}', False, None),
        ("400", '{"error": "`x` must be 1."}', True, None),
        ("200", "{}", False, None),
    ],
)
def test_the_script_can_tell(status: str, said: str, refused: bool, wrong: str | None) -> None:
    if wrong is None:
        judge(Answer(status, said), refused=refused)
        return
    with pytest.raises(Bad, match=wrong):
        judge(Answer(status, said), refused=refused)


def test_a_seed_and_an_index_are_one_request() -> None:
    value = {"a": [1, {"b": 2}], "c": "d"}
    made = [with_values_exchanged(random.Random("0:9"), value) for _ in range(2)]
    assert made[0] == made[1] != json.dumps(value).encode()
