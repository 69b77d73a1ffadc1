"""The page in docs/browser runs the shipped package, with the reference's numbers."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, browsing

from causal_attn import AttentionSpec
from causal_attn.attention.example import worked_example
from causal_attn.attention.numpy_reference import run_spec

ROOT = Path(__file__).parents[2]
DIST = os.environ.get("ONNXRUNTIME_WEB")

pytestmark = [
    pytest.mark.skipif(
        DIST is None, reason="scripts/check_webgpu brings onnxruntime-web with npm"
    ),
    pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor chromium-browser is here"),
]

SOFTWARE = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""WebGPU in Chromium's own software; it must be asked for."""


class Files(http.server.SimpleHTTPRequestHandler):
    """The checkout, with npm's `dist` where the page looks for a local one."""

    def translate_path(self, path: str) -> str:
        local = "/docs/browser/ort/"
        if path.startswith(local):
            return str(Path(str(DIST), Path(path).name))
        return super().translate_path(path)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the stderr of the tests."""


@contextmanager
def served() -> Iterator[str]:
    """The address of the page."""

    def handler(*arguments: Any) -> Files:
        return Files(*arguments, directory=str(ROOT))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/docs/browser/?local"
        finally:
            server.shutdown()


def test_wasm_and_webgpu_say_what_the_reference_says(tmp_path: Path) -> None:
    with served() as address, browsing(tmp_path / "profile", SOFTWARE) as tab:
        tab.open(address)
        results = tab.until("window.results")
        shown = tab.evaluate("document.body.innerText")
        tab.screenshot(tmp_path / "page.png", 1000, 400)
    assert tab.complaints == []
    wide = {name: array.astype(np.float64) for name, array in worked_example().items()}
    want = run_spec(AttentionSpec(), wide)
    assert [result["provider"] for result in results] == ["wasm", "webgpu"]
    for result in results:
        assert result["right"] is True, result
        for name in ("output", "weights"):
            np.testing.assert_allclose(result[name], want[name].ravel(), rtol=0, atol=1e-6)
        assert result["weights"][1:3] == [0, 0]
    wasm, webgpu = results
    # Two products, the mask and the softmax at least.
    assert (wasm["dispatched"], webgpu["dispatched"] >= 4) == (0, True)
    assert shown.count("0.2483") == 4
    assert "wrong" not in shown
