"""A server from its start to SIGTERM: what it refuses to load, who may come in, how it ends."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from openai import APIStatusError, AuthenticationError, OpenAI
from server_process import COMMAND, Server, start
from tritonclient.utils import InferenceServerException

from causal_attn import models
from causal_attn.cli import main
from causal_attn.runtime import load

TOKEN = "correct-horse-battery"


@pytest.fixture
def guarded(endless: Path, tmp_path: Path) -> Iterator[Server]:
    """A server with a token and small limits."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    joined = ("--batch-delay-seconds", "0.002")
    small = ("--max-request-bytes", "4000", "--max-tokens", "40", "--max-new-tokens", "3000")
    running = start(
        f"letters={endless}",
        f"attention={models.path('causal_attention')}",
        *("--token-file", str(token), *small, *joined),
    )
    yield running
    running.process.kill()
    running.process.wait()


def get(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    status, body = answer.status, answer.read()
    connection.close()
    return status, body


def opened(server: Server, token: str = TOKEN) -> OpenAI:
    return OpenAI(base_url=f"{server.http}/v1", api_key=token, max_retries=0)


def test_tokens_limits_and_the_end(guarded: Server) -> None:
    """One server for all of it: each start takes seconds."""
    for wrong in ("", "correct-horse-batterx", TOKEN + "x", "é"):
        status, body = get(guarded, "/v1/models", Authorization=f"Bearer {wrong}")
        assert status == 401
        assert b"token" in body
        assert TOKEN.encode() not in body
    assert get(guarded, "/metrics")[0] == 401
    status, page = get(guarded, "/metrics", Authorization=f"Bearer {TOKEN}")
    assert status == 200
    assert b'causal_attn_calls_joined{model_name="attention"} 1.0' in page
    assert get(guarded, "/v2/health/ready")[0] == get(guarded, "/v2/health/live")[0] == 200
    with pytest.raises(AuthenticationError), opened(guarded, "another-token") as client:
        client.models.list()
    with opened(guarded) as client:
        assert [model.id for model in client.models.list()] == ["letters"]
        with pytest.raises(APIStatusError, match="at most 4000 bytes") as caught:
            client.completions.create(model="letters", prompt="a" * 5000)
        assert caught.value.status_code == 413
        with pytest.raises(APIStatusError, match="at most 40 tokens on this server") as caught:
            client.completions.create(model="letters", prompt="a" * 41, max_tokens=1)
        assert caught.value.status_code == 400
    _check_grpc(guarded)
    _check_bodies(guarded)
    _check_the_end(guarded)


def _check_grpc(server: Server) -> None:
    array = np.zeros((1, 1, 50, 1), np.float32)
    inputs = []
    for name in "qkv":
        inputs.append(tritonclient.grpc.InferInput(name, array.shape, "FP32"))
        inputs[-1].set_data_from_numpy(array)
    headers = {"authorization": f"Bearer {TOKEN}"}
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert client.is_server_live()
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.infer("attention", inputs)
        _check_joined(client, headers)
        with pytest.raises(InferenceServerException, match="at most 40 tokens"):
            client.infer("attention", inputs, headers=headers)
        inputs[0].set_data_from_numpy(array)
        large = np.zeros((1, 1, 50, 100), np.float32)
        inputs[0].set_shape(large.shape)
        inputs[0].set_data_from_numpy(large)
        with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
            client.infer("attention", inputs, headers=headers)


def _check_joined(client: Any, headers: dict[str, str]) -> None:
    """Calls of many threads at once, joined, get each what it would get alone."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((1, 2, 9, 4)).astype(np.float32) for _ in range(12)]

    def called(array: Any) -> Any:
        inputs = []
        for name in "qkv":
            inputs.append(tritonclient.grpc.InferInput(name, array.shape, "FP32"))
            inputs[-1].set_data_from_numpy(array)
        wanted = [tritonclient.grpc.InferRequestedOutput("output")]
        answer = client.infer("attention", inputs, outputs=wanted, headers=headers)
        assert answer.as_numpy("weights") is None
        return answer.as_numpy("output")

    with ThreadPoolExecutor(12) as pool:
        came = list(pool.map(called, arrays))
    with load(models.path("causal_attention"), intra_op_threads=1) as session:
        for array, one in zip(arrays, came, strict=True):
            np.testing.assert_allclose(one, session(array, array, array)[0], rtol=1e-5, atol=1e-6)


def _check_bodies(server: Server) -> None:
    address = server.http.removeprefix("http://")
    for headers, body, wanted in (
        ({"Content-Encoding": "gzip"}, b"{}", 415),
        ({"Transfer-Encoding": "chunked"}, [b"x" * 1000] * 9, 413),
        # More than sockets hold: the answer comes while the client is still sending.
        ({}, b"x" * 8_000_000, 413),
    ):
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request(
            "POST",
            "/v1/completions",
            body=iter(body) if isinstance(body, list) else body,
            headers={**headers, "Authorization": f"Bearer {TOKEN}"},
            encode_chunked=isinstance(body, list),
        )
        answer = connection.getresponse()
        assert answer.status == wanted
        assert json.loads(answer.read())["error"]["message"]
        connection.close()


def _check_the_end(server: Server) -> None:
    """SIGTERM: what was taken is answered whole, what comes later gets 503."""
    with opened(server) as client, opened(server) as late:
        late.models.list()  # an open connection, as a proxy has
        stream = client.completions.create(
            model="letters", prompt="cab", max_tokens=3000, stream=True,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
        chunks = iter(stream)
        came = [next(chunks)]
        server.process.terminate()
        server.logged(event="stopping")
        assert get(server, "/v2/health/ready")[0] == 503
        with pytest.raises(APIStatusError, match="stopping") as caught:
            late.models.list()
        assert caught.value.status_code == 503
        came += chunks
    assert sum(len((chunk.choices[0].model_extra or {})["token_ids"]) for chunk in came) == 3000
    assert came[-1].choices[0].finish_reason == "length"
    assert server.process.wait(30) == 0
    assert server.logged(event="stopped")["finished"] is True


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    out, said = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in said
    return caught.value.code, " ".join(said.split())


def test_a_package_that_is_not_verified_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(models.path("causal_attention"), package)
    for certificate in package.rglob("certificate.json"):
        certificate.write_text(certificate.read_text().replace('"causal"', '"not causal"', 1))
    # In a process of its own: Triton's client and the SDK define the same messages.
    command = [*COMMAND, str(package), "--port", "0", "--grpc-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "certificate" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*COMMAND, str(models.path("causal_attention")), "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said = " ".join(ended.stderr.split())
    assert ended.returncode == 2
    assert "`--host` and `--port` must be an address of this machine that nobody" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a=/nowhere"], "/nowhere"),
        (["a b=/"], "names of letters"),
        (["x=/", "x=/"], "different names"),
        (["x=/", "--port", "70000"], "`--port` must be an integer from 0 to 65535, got 70000"),
        (["x=/", "--port", "9", "--grpc-port", "9"], "`--port` and `--grpc-port` must differ"),
        (["x=/", "--seconds", "0"], "`--seconds` must be a finite number > 0, got 0.0"),
        (["x=/", "--token-file", "/dev/null"], "`--token-file` must have the token"),
    ],
)
def test_a_mistake_is_one_sentence(
    capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, said = refused(capfd, *arguments)
    assert code == 2
    assert message in said
