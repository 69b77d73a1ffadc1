"""The service of docs/service.py as a process of its own, with requests over loopback."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from causal_attn import models
from causal_attn.runtime import load

DOCS = Path(__file__).parents[1] / "docs"
Arrays = dict[str, NDArray[np.float32]]
LONG = 120.0
"""Seconds within which the service is there, however busy the machine."""


def ask(port: int, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def attend(port: int, arrays: Arrays) -> tuple[int, Any]:
    body = json.dumps({name: array.tolist() for name, array in arrays.items()})
    return ask(port, "POST", "/attend", body)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a service that runs; it must end by itself when it is asked to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "uvicorn", "service:app", "--log-level", "warning"]
        process = subprocess.Popen(
            [*command, "--fd", str(listening.fileno())],
            cwd=DOCS,
            pass_fds=[listening.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        number = listening.getsockname()[1]
        try:
            assert ask(number, "GET", "/health")[0] == 200
            yield number
        finally:
            process.terminate()
            _, said = process.communicate(timeout=LONG)
    assert "Traceback" not in said, said


def request(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    shape = (1 + seed % 2, 2, (1, 5, 33)[seed % 3], 8)
    return {name: random.standard_normal(shape, np.float32) for name in "qkv"}


def test_many_clients_get_what_the_session_gives(port: int) -> None:
    before = ask(port, "GET", "/health")[1]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda seed: attend(port, request(seed)), range(48)))
    with load(models.path("causal_attention")) as session:
        for seed, (status, answer) in enumerate(answers):
            assert status == 200, answer
            for name, wanted in session(**request(seed))._asdict().items():
                np.testing.assert_allclose(
                    np.array(answer[name], np.float32), wanted, rtol=1e-6, atol=1e-6
                )
    after = ask(port, "GET", "/health")[1]
    assert after["sequences"] - before["sequences"] == sum(1 + seed % 2 for seed in range(48))
    assert after["errors"] == before["errors"]
    assert after["waiting"] == 0


ONE = [[[[1.0]]]]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"q": ONE, "k": ONE}, "got no 'v'"),
        ({"q": ONE, "k": ONE, "v": ONE, "w": ONE}, "w"),
        ({"q": ONE, "k": ONE, "v": [[[[1.0], [2.0]]]]}, "`v` must have tokens = 1"),
        ({"q": ONE, "k": ONE, "v": [[[[1.0], []]]]}, "lists of one length"),
        ({"q": ONE, "k": ONE, "v": [[[["a"]]]]}, "must be numbers"),
        ({"q": ONE, "k": ONE, "v": [[[[None]]]]}, "`v` must be finite"),
        ({"q": ONE, "k": ONE, "v": [[[[float("inf")]]]]}, "`v` must be finite"),
        ({"q": ONE, "k": ONE, "v": [[[[1e300]]]]}, "`v` must be finite"),
        (
            {"q": [[[[1.0]] * 513]]} | {"k": [[[[1.0]] * 513]], "v": [[[[1.0]] * 513]]},
            "at most 512",
        ),
        ({"q": 1}, "list"),
        ([], "dict"),
    ],
)
def test_a_bad_request_is_its_senders_fault(port: int, body: Any, words: str) -> None:
    status, answer = ask(port, "POST", "/attend", json.dumps(body))
    assert status == 422, answer
    assert words in json.dumps(answer)


def test_it_needs_no_torch() -> None:
    code = "import sys, service; sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=DOCS, check=True)
