"""Headless Chromium that a test can type into, through its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

__all__ = ["CHROMIUM", "Tab", "browsing"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_SECONDS = 60


class Tab:
    """One page of the browser; what it complained about is in `complaints`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Runtime", "Log", "Page"):
            self._do(f"{domain}.enable")

    def _do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._connection.recv(timeout=PATIENCE_SECONDS))
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]
            if said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said.get("method") == "Log.entryAdded":
                self.complaints.append(json.dumps(said["params"]["entry"]))

    def open(self, address: str) -> None:
        self._do("Page.navigate", url=address)

    def evaluate(self, program: str) -> Any:
        """The value of `program`, JavaScript in the page."""
        answer = self._do("Runtime.evaluate", expression=program, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, program: str) -> Any:
        """The first value of `program` that is true, asked again and again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if value := self.evaluate(program):
                return value
            time.sleep(0.05)
        raise AssertionError(f"{program} never came: {self.evaluate('document.body.innerText')}")

    def screenshot(self, path: Path, width: int = 1100, height: int = 1500) -> None:
        self._do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        taken = self._do("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browsing(profile: Path, flags: Sequence[str] = ("--disable-gpu",)) -> Iterator[Tab]:
    """An empty tab of a browser of its own; `flags` say what it draws and computes with."""
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [
            CHROMIUM, "--headless", "--no-sandbox", *flags, "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with connect(_tab(profile / "DevToolsActivePort"), max_size=1 << 26) as connection:
            yield Tab(connection)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _tab(told: Path) -> str:
    """The address of the browser's tab, once it has written its port into `told`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (told.is_file() and told.read_text().count("\n")):
        assert time.monotonic() < deadline, "the browser did not start"
        time.sleep(0.05)
    port = told.read_text().split("\n")[0]
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [tab for tab in json.load(answer) if tab["type"] == "page"]
        if pages:
            address: str = pages[0]["webSocketDebuggerUrl"]
            return address
        assert time.monotonic() < deadline, "the browser has no tab"
        time.sleep(0.05)
