"""No right graph is refused, every small fault is found; `scripts/parity_power` has them all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity_models import FAULTS, exact, exported, faulty, parity
from sampled import sampled

from causal_attn.machine.provider import Provider

# Grouped heads and a window, or a tied table and GELU; and the most ill-conditioned of all.
SAMPLED = sampled(("mistral", "gpt2", "granite"), 1, "granite")


@pytest.mark.parametrize("family", SAMPLED)
def test_right_graphs_pass_and_small_faults_are_found(family: str, tmp_path: Path) -> None:
    target, subject = exported(family, tmp_path)
    right = exact(target)
    with subject.open(Provider.CPU) as session:
        for seed in range(4):
            check = parity(target, subject, session, seed)
            assert check.passed is True, f"seed {seed}: {check.detail}"
        found: dict[str, bool | None] = {}
        for name, fault in FAULTS.items():
            try:
                wrong, context = faulty(target, fault)
            except LookupError:
                continue
            with context:
                if not torch.equal(exact(wrong), right):
                    found[name] = parity(wrong, subject, session, 0).passed
    assert len(found) >= 7
    assert set(found.values()) == {False}, found
