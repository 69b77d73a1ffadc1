"""Requests that are damaged, and what of the answers to them must not be."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from server_process import Server
from tritonclient.grpc import service_pb2

__all__ = ["Answer", "Bad", "Damaged", "judge", "with_values_exchanged"]

ROOT = Path(__file__).parents[2]

TENSOR = {"shape": [1, 1, 2, 2], "datatype": "FP32", "data": [1.0, 2.5, 3, 4]}
INFER = "/v2/models/a/infer"
SOUND: tuple[tuple[str, dict[str, Any]], ...] = (
    (INFER, {"inputs": [{"name": name, **TENSOR} for name in "qkv"]}),
    (INFER, {"inputs": [{"name": name, **TENSOR} for name in "qkv"], "id": "1",
             "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}),
    ("/v1/completions", {"model": "l", "prompt": "cab", "max_tokens": 3, "stop": ["x"]}),
    ("/v1/completions", {"model": "l", "prompt": [1, 2], "max_tokens": 3, "stream": True,
                         "stream_options": {"include_usage": True}, "logprobs": 2}),
    ("/v1/completions", {"model": "l", "prompt": [[1, 2]], "max_tokens": 2, "seed": 3,
                         "temperature": 0.5, "top_k": 3, "repetition_penalty": 1.1}),
    ("/v1/chat/completions", {"model": "l", "max_tokens": 3, "top_p": 0.9,
                              "messages": [{"role": "user", "content": "ab"}]}),
    ("/v1/chat/completions", {"model": "l", "max_completion_tokens": 3, "stream": True,
                              "logprobs": True, "top_logprobs": 1, "messages": [
                                  {"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 2**31, 2**63, 2**70, -(2**63), 0.5, "", "a", [], {}, [[]], [None]),
    *("x" * 50, "x" * 70_000, "\ud800", "\0", "../../etc/passwd", "FP64", "INT64", [2**62] * 3),
)
DATATYPES = (
    "BOOL",
    "INT8",
    "INT64",
    "UINT16",
    "FP16",
    "FP64",
    "BYTES",
    "BF16",
    "fp32",
    "",
    "float32",
)
SIZES = (-1, 0, 3, 2**31, 2**31 - 1, 2**62, 2**63 - 1)
PATHS = (
    *("/v2/models/a", "/v2/models/../../etc/passwd/infer", "/v2/models/%2e%2e%2fetc/infer", "//"),
    *("/v2/models/a/infer/", "/v2/repository/index", "/v2/models/a/versions/1/infer", "/v1", "/é"),
    *("/v1/models/l", "/v1/models/%00", "/page/models", "/page/../rest.py", "/" + "a" * 9000),
    *("/docs", "/openapi.json", "/v2/models/l/ready", "/v2/models/b/ready", "/*?a=%ff", "*"),
)
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "POST", "post", "X")
HEADERS = (
    *(("Content-Type", "text/plain"), ("Content-Type", "\x80"), ("Content-Encoding", "gzip")),
    *(("Content-Encoding", "br"), ("X-Request-Id", "a b\x01"), ("X-Request-Id", "x" * 3000)),
    *(("Inference-Header-Content-Length", "-1"), ("Inference-Header-Content-Length", "9" * 30)),
    *(("Inference-Header-Content-Length", "²"), ("Inference-Header-Content-Length", "0")),
    *(("Authorization", "Bearer \xff"), ("Accept", "image/png"), ("Expect", "100-continue")),
    *(
        ("Cookie", "x" * 60_000),
        ("Host", "\x7f"),
        ("Upgrade", "websocket"),
        ("Connection", "close"),
    ),
)
SERVICE = "/inference.GRPCInferenceService/"
BLAME = ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS")
"""Codes of gRPC that say that the server failed."""

SHOWN = re.compile(
    rf"Traceback|File \"|\.py\b|site-packages|{re.escape(str(ROOT))}|{tempfile.gettempdir()}/"
)
PATIENCE_SECONDS = 90


class Answer(NamedTuple):
    """What came back.

    Attributes:
        status: Of HTTP, or the name of gRPC's; "cut": nothing did; "gone": nobody waited.
        said: The body, or the details.
    """

    status: str
    said: str


class Bad(Exception):
    """An answer that must not be."""


class Damaged:
    """Damages requests, sends them to one server and judges the answers.

    Args:
        server: Has the shipped package as ``a`` and a language model as ``l``.
    """

    def __init__(self, server: Server) -> None:
        self._address = server.http.removeprefix("http://")
        self._host, port = self._address.split(":")
        self._port = int(port)
        self._connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_SECONDS)
        self._channel = grpc.insecure_channel(server.grpc)
        self._kinds = (
            self.json_values, self.json_bytes, self.tensors, self.binary, self.odd_headers,
            self.odd_lines, self.leaves, self.protobuf_bytes, self.messages, self.leaves_grpc,
        )  # fmt: skip

    def send(self, seed: int, index: int) -> tuple[str, Answer]:
        """Request `index`: its kind, and what was answered.

        Raises:
            Bad: The answer must not be.
        """
        dice = random.Random(f"{seed}:{index}")
        kind = dice.choice(self._kinds)
        answer, refused = kind(dice)
        judge(answer, refused=refused)
        return kind.__name__, answer

    def json_values(self, dice: random.Random) -> tuple[Answer, bool]:
        """Sound JSON with one or two of its parts exchanged or left out."""
        path, value = dice.choice(SOUND)
        return self._post(path, with_values_exchanged(dice, value)), False

    def json_bytes(self, dice: random.Random) -> tuple[Answer, bool]:
        """Sound JSON with bytes changed, or cut off, which is no JSON any more."""
        path, value = dice.choice(SOUND)
        body = json.dumps(value).encode()
        if dice.random() < 0.3:
            return self._post(path, body[: dice.randrange(len(body))]), True
        return self._post(path, damaged(dice, body)), False

    def tensors(self, dice: random.Random) -> tuple[Answer, bool]:
        """A tensor that is not what it says, or not what the contract says."""
        inputs = [{"name": name, **TENSOR} for name in "qkv"]
        tensor = dice.choice(inputs)
        match dice.randrange(5):
            case 0:
                tensor["datatype"] = dice.choice(DATATYPES)
            case 1:
                shape = [1, 1, 2, 2]
                shape[dice.randrange(4)] = dice.choice(SIZES)
                tensor["shape"] = shape
            case 2:
                tensor["shape"] = [1] * dice.choice((0, 1, 3, 5, 33, 5000))
            case 3:
                tensor["data"] = [1.0] * dice.choice((0, 3, 5, 10_000))
            case 4:
                tensor["name"] = dice.choice(("", "x", "output", "Q", "q" * 9000))
        return self._post(INFER, json.dumps({"inputs": inputs}).encode()), True

    def binary(self, dice: random.Random) -> tuple[Answer, bool]:
        """Binary tensors behind their JSON, with lengths that lie."""
        sizes, lie = [16, 16, 16], dice.randrange(3)
        tail, length = b"\0" * 48, 0
        if lie == 0:
            wrong: Any = (-1, 0, 15, 17, 48, 2**31, 2**63, 2**70, 16.0, "16", True, [16])
            sizes[dice.randrange(3)] = dice.choice(wrong)
        elif lie == 1:
            tail = b"\0" * dice.choice((0, 1, 47, 49, 5000))
        head = json.dumps(
            {
                "inputs": [
                    {"name": name, "shape": [1, 1, 2, 2], "datatype": "FP32",
                     "parameters": {"binary_data_size": size}}
                    for name, size in zip("qkv", sizes, strict=True)
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()  # fmt: skip
        length = len(head)
        if lie == 2:
            length = dice.choice((0, 1, length - 1, length + 1, length + 49, 2**31, 2**64))
        header = {"Inference-Header-Content-Length": str(length)}
        return self._post(INFER, head + tail, header), True

    def odd_headers(self, dice: random.Random) -> tuple[Answer, bool]:
        """Sound JSON under headers, methods and paths that make no sense."""
        path, value = dice.choice(SOUND)
        method = dice.choice(METHODS) if dice.random() < 0.3 else "POST"
        if dice.random() < 0.3:
            path = dice.choice(PATHS)
        lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: x"]
        for name, text in dice.choices(HEADERS, k=dice.randint(0, 2)):
            lines.append(f"{name}: {text}".encode("latin-1", "replace"))
        return self._raw(lines, json.dumps(value).encode(), method), False

    def odd_lines(self, dice: random.Random) -> tuple[Answer, bool]:
        """What is hardly HTTP."""
        path, value = dice.choice(SOUND)
        body = json.dumps(value).encode()
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (
            path.encode(), len(body),
        )  # fmt: skip
        lied = (
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n"
            % (path.encode(), dice.choice((b"-1", b"1e3", b"9" * 40, b"0x10", b"1, 2"))),
            b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n"
            % (path.encode(), dice.choice((b"zz", b"-1", b"f" * 20, b"\xff"))),
        )
        content = dice.choice((damaged(dice, head), *lied)) + body
        return self._exchange(content, "POST"), False

    def leaves(self, dice: random.Random) -> tuple[Answer, bool]:
        """A client that goes: in its headers, in its body, or before the answer has come."""
        path, value = dice.choice(SOUND)
        body = json.dumps({**value, "max_tokens": 200} if "model" in value else value).encode()
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (
            path.encode(), len(body),
        )  # fmt: skip
        content = head + body
        cut = dice.choice((dice.randrange(len(content)), len(content)))
        with socket.create_connection((self._host, self._port)) as connection:
            connection.sendall(content[:cut])
            if dice.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if cut == len(content) and dice.random() < 0.5:
                connection.recv(dice.randint(1, 300))
        return Answer("gone", ""), False

    def protobuf_bytes(self, dice: random.Random) -> tuple[Answer, bool]:
        """A message with bytes changed, for any method."""
        method = dice.choice(
            ("ModelInfer", "ModelInfer", "ModelMetadata", "ModelReady", "Nothing")
        )
        return self._call(method, damaged(dice, message().SerializeToString())), False

    def messages(self, dice: random.Random) -> tuple[Answer, bool]:
        """A message whose tensors are not what they say, or not what the contract says."""
        request = message()
        tensor, index = (request.inputs[place := dice.randrange(3)], place)
        match dice.randrange(6):
            case 0:
                tensor.datatype = dice.choice(DATATYPES)
            case 1:
                tensor.shape[dice.randrange(4)] = dice.choice(SIZES)
            case 2:
                del tensor.shape[:]
                tensor.shape.extend([1] * dice.choice((0, 1, 5, 33, 5000)))
            case 3:
                request.raw_input_contents[index] = b"\0" * dice.choice((0, 15, 17, 4096))
            case 4:
                if dice.random() < 0.5:
                    request.raw_input_contents.append(b"")
                else:
                    tensor.contents.fp32_contents.extend([1.0] * dice.choice((3, 4, 100)))
            case 5:
                request.model_name = dice.choice(("", "b", "../a", "\0", "a" * 70_000))
        return self._call("ModelInfer", request.SerializeToString()), True

    def leaves_grpc(self, dice: random.Random) -> tuple[Answer, bool]:
        """A client that does not wait for the answer."""
        call = self._channel.unary_unary(SERVICE + "ModelInfer")
        future = call.future(message().SerializeToString(), timeout=PATIENCE_SECONDS)
        time.sleep(dice.random() * 0.002)
        future.cancel()
        return Answer("gone", ""), False

    def held(self) -> dict[str, float]:
        """What the server still holds; empty once all clients are gone."""
        deadline = time.monotonic() + 20
        while True:
            with urllib.request.urlopen(f"http://{self._address}/metrics") as page:
                text = page.read().decode()
            found = re.findall(
                r"^causal_attn_((?:calls|answers)_(?:running|waiting)\{.*\}) (\S+)$", text, re.M
            )
            # The request that asks is one.
            inside = re.search(r"^causal_attn_requests_in_flight (\S+)$", text, re.M)
            numbers = {name: float(value) for name, value in found}
            numbers["requests_in_flight"] = float(inside[1]) - 1 if inside else -1.0
            held = {name: number for name, number in numbers.items() if number}
            if not held or time.monotonic() > deadline:
                return held
            time.sleep(0.2)

    def _post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        try:
            self._connection.request("POST", path, body, headers or {})
            answer = self._connection.getresponse()
            return Answer(str(answer.status), answer.read().decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return Answer("cut", repr(error))

    def _raw(self, lines: list[bytes], body: bytes, method: str) -> Answer:
        lines.append(b"Content-Length: %d" % len(body))
        return self._exchange(b"\r\n".join(lines) + b"\r\n\r\n" + body, method, ends=False)

    def _exchange(self, content: bytes, method: str, *, ends: bool = True) -> Answer:
        """What is answered to `content`; with `ends`, to a client that has no more to say."""
        with socket.create_connection((self._host, self._port), PATIENCE_SECONDS) as connection:
            try:
                connection.sendall(content)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
                answer = http.client.HTTPResponse(connection, method=method)
                answer.begin()
                return Answer(str(answer.status), answer.read().decode("utf-8", "replace"))
            # Who ends in the middle of a request need not be answered.
            except (OSError, http.client.HTTPException):
                return Answer("gone", "")

    def _call(self, method: str, content: bytes) -> Answer:
        try:
            self._channel.unary_unary(SERVICE + method)(content, timeout=PATIENCE_SECONDS)
        except grpc.RpcError as error:
            return Answer(error.code().name, error.details() or "")
        return Answer("OK", "")


def judge(answer: Answer, *, refused: bool) -> None:
    """Let an answer pass, or not.

    Args:
        answer: What came.
        refused: Whether the request is bad for certain.

    Raises:
        Bad: The answer must not be.
    """
    status, said = answer
    if status == "gone":
        return
    what = f"got {status} {said[:300]!r}"
    over_http = status.isdigit()
    if status in BLAME or status == "cut":
        raise Bad(f"the server failed: {what}")
    if over_http and status >= "500" and not (status == "503" and "again" in said):
        raise Bad(f"the server failed: {what}")
    is_refusal = status.startswith("4") if over_http else status != "OK"
    if refused and not is_refusal:
        raise Bad(f"a bad request was taken: {what}")
    # Of a method that there is not, gRPC's own layer says so; HEAD is answered by no body.
    if not is_refusal or said == "Method not found!" or (over_http and not said):
        return
    words = sentence(said) if over_http else said
    if SHOWN.search(words):
        raise Bad(f"an error shows internals: {what}")
    if not re.search(r"\w.*\.$", words, re.S):
        raise Bad(f"an error is no sentence: {what}")


def sentence(said: str) -> str:
    """The message of an error."""
    try:
        error = json.loads(said)["error"]
    except (ValueError, TypeError, KeyError):
        # What is no HTTP never reaches the application.
        return said
    return error["message"] if isinstance(error, dict) else str(error)


def with_values_exchanged(dice: random.Random, value: Any) -> bytes:
    """`value` as JSON, with one or two of its parts replaced or left out."""
    copy = json.loads(json.dumps(value))
    for _ in range(dice.randint(1, 2)):
        places: list[tuple[Any, Any]] = []
        pending = [copy]
        while pending:
            part = pending.pop()
            keys = part.keys() if isinstance(part, dict) else range(len(part))
            places += [(part, key) for key in keys]
            pending += [part[key] for key in keys if isinstance(part[key], dict | list)]
        part, key = dice.choice(places)
        if isinstance(part, dict) and dice.random() < 0.2:
            del part[key]
        else:
            part[key] = json.loads(json.dumps(dice.choice(VALUES)))
        if not copy:
            break
    return json.dumps(copy).encode()


def damaged(dice: random.Random, content: bytes) -> bytes:
    """`content` with up to four places changed, cut off, inserted or left out."""
    left = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(left) + 1)
        match dice.randrange(4):
            case 0:
                left[place : place + 1] = bytes([dice.randrange(256)])
            case 1:
                del left[place:]
            case 2:
                left[place:place] = bytes([dice.randrange(256)]) * dice.randint(1, 20)
            case 3:
                del left[place : place + dice.randint(1, 5)]
    return bytes(left)


def message() -> Any:
    """A sound request of gRPC."""
    protocol: Any = service_pb2
    request = protocol.ModelInferRequest(model_name="a")
    for name in "qkv":
        request.inputs.add(name=name, datatype="FP32", shape=[1, 1, 2, 2])
        request.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    return request
