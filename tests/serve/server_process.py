"""`causal-attn serve` as a process on loopback, and the packages that it serves in tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toy_decoder import VOCABULARY, write_decoder

__all__ = ["COMMAND", "LETTERS", "Server", "start", "write_language_model"]

LETTERS = "abcdefghijklmnopqrstuv"
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
COMMAND = [sys.executable, "-c", "from causal_attn.cli import main; main()", "serve"]
PATIENCE_SECONDS = 60


@dataclass
class Server:
    """A process that says in its log where it listens."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    listening: threading.Event = field(default_factory=threading.Event)
    http: str = ""
    grpc: str = ""

    def read(self) -> None:
        """Its log, until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if not line.startswith("{"):
                self.other.append(line)
                continue
            values = json.loads(line)
            self.lines.append(values)
            if values["event"] == "ready":
                self.http, self.grpc = values["http"], values["grpc"]
                self.listening.set()
        self.process.stderr.close()
        self.listening.set()

    def logged(self, **wanted: Any) -> dict[str, Any]:
        """The line with these values; the log comes a moment after the answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if wanted.items() <= line.items():
                    return line
            time.sleep(0.01)
        raise AssertionError(f"{wanted} is not in {self.lines}")

    def terminate(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


def start(*arguments: str) -> Server:
    """Start a server on free ports, and wait until it is ready."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--grpc-port", "0", "--threads", "1", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "500"},
    )
    server = Server(process)
    threading.Thread(target=server.read, daemon=True).start()
    assert server.listening.wait(PATIENCE_SECONDS)
    assert server.http, server.other
    return server


def write_language_model(root: Path, *, ends: bool = True, attentions: bool = False) -> Path:
    """The toy decoder, whose 22 first tokens are letters; with `ends`, its last one ends."""
    files = {"generation_config.json": {"eos_token_id": VOCABULARY - 1}} if ends else {}
    package: Path = write_decoder(root, files=files, attentions=attentions)
    folder = package / "toy" / "cpu"
    words = {letter: index for index, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.WordLevel(words | {"</s>": VOCABULARY - 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return package
