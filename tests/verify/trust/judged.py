"""One graph: what is true of it, and what `verify` says."""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from causal_attn.errors import CausalAttnError
from causal_attn.verify import verify
from trust.handmade import HANDMADE, made
from trust.pen import Pen, Unfit
from trust.rewritten import REWRITTEN
from trust.spoiled import SPOILED
from trust.truth import find_truth

__all__ = ["Judged", "judge", "plan"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A graph and both answers.

    Attributes:
        family, kind: Which graph.
        faults: What is wrong with it, found by running it; nothing: it is right.
        exit_code: What ``causal-attn verify`` exits with; -1: another tool or rule did not fit.
        verdict: And the verdict it prints.
        reasons: Its checks that did not pass.
        seconds: That it took.
    """

    family: str
    kind: str
    faults: dict[str, str]
    exit_code: int
    verdict: str = ""
    reasons: dict[str, str]
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """``right``, ``wrong fine``, ``false alarm``, ``undecided`` or ``unfit``."""
        if self.exit_code == -1:
            return "unfit"
        if self.exit_code in (2, 3):
            return "undecided"
        if self.faults:
            return "right" if self.exit_code == 1 else "wrong fine"
        return "right" if self.exit_code == 0 else "false alarm"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome}


def plan(seed: int, families: int) -> list[tuple[str, str]]:
    """Each kind on `families` families drawn by `seed`, in an order drawn too."""
    rng = np.random.default_rng(seed)
    names = list(HANDMADE)
    cases = []
    for kind in (*SPOILED, *REWRITTEN):
        chosen = rng.permutation(len(names))[:families]
        cases += [(names[at], kind) for at in sorted(chosen)]
    return [cases[at] for at in rng.permutation(len(cases))]


def judge(family: str, kind: str, seed: int) -> Judged:
    """Make the graph, run it in every way, and verify it."""
    model, layout = made(family, seed)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if kind in SPOILED:
                SPOILED[kind](Pen(model), layout)
            elif kind in REWRITTEN:
                model = REWRITTEN[kind](copy.deepcopy(model))
    except Unfit as error:
        return Judged(
            family=family, kind=kind, faults={}, exit_code=-1, reasons={"unfit": str(error)}
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        truth = find_truth(str(path), layout, seed)
        started = time.perf_counter()
        try:
            report = verify(path)
        except CausalAttnError as error:
            return Judged(
                family=family, kind=kind, faults=truth.faults, exit_code=2,
                reasons={type(error).__name__: str(error)},
                seconds=time.perf_counter() - started,
            )  # fmt: skip
    certificate = report.variants[0].certificate
    return Judged(
        family=family, kind=kind, faults=truth.faults, exit_code=report.exit_code,
        verdict=str(certificate.verdict),
        reasons={check.name: check.detail for check in certificate.checks if not check.passed},
        seconds=time.perf_counter() - started,
    )  # fmt: skip
