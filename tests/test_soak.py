"""Threads, exchanged files, ended calls, bad requests and reloads at once, for a few seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[1] / "scripts" / "soak"


def test_nothing_goes_wrong_in_a_short_soak() -> None:
    """Memory is for the long run by hand: in seconds it has not come to rest."""
    command = [sys.executable, str(SOAK), "--seconds", "8", "--threads", "2", "--json"]
    run = subprocess.run(command, capture_output=True, text=True)
    figures = json.loads(run.stdout)
    assert (figures["wrong"], figures["raw_errors"], run.stderr) == (0, 0, "")
    for kind in ("calls", "refused", "ended", "loads"):
        assert figures[kind] > 0
