"""A cluster of two nodes on this machine: a replica is killed under load, then a whole node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'causal-attn[ray]'")

FAULTS = Path(__file__).parents[2] / "scripts" / "ray_faults"


def test_no_request_is_lost_with_a_replica_or_a_node() -> None:
    """Every answer is right or an error in a sentence; and there are right ones after each."""
    small = ("--nodes", "1", "--seconds", "3", "--clients", "3", "--json")
    run = subprocess.run([sys.executable, str(FAULTS), *small], capture_output=True, text=True)
    assert run.stdout, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["strange"] == []
    for name in ("before", "a replica killed", "a node killed"):
        counts = found["phases"][name]
        assert counts["right"] > 0, found
        assert counts.keys() <= {"right", "told", "per_second"}
