"""A few graphs of `scripts/trust`, others for each seed: none may be judged wrongly."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from sampled import SEED
from trust.handmade import HANDMADE, made
from trust.judged import judge, plan
from trust.pen import Pen
from trust.spoiled import SPOILED
from trust.truth import find_truth

SAMPLE = plan(0 if SEED == "all" else int(SEED), 1)[:4]


@pytest.mark.parametrize(("family", "kind"), SAMPLE)
def test_verdict_is_the_truth(family: str, kind: str) -> None:
    judged = judge(family, kind, 0)
    assert judged.outcome not in ("wrong fine", "false alarm"), judged.to_dict()


@pytest.mark.parametrize("family", HANDMADE)
def test_what_is_not_spoiled_is_right(family: str, tmp_path: Path) -> None:
    model, layout = made(family, 0)
    onnx.save(model, tmp_path / "model.onnx")
    assert find_truth(str(tmp_path / "model.onnx"), layout, 0).right


@pytest.mark.parametrize("kind", ["mask with one hole", "past beyond 40 fades"])
def test_what_is_spoiled_is_wrong(kind: str, tmp_path: Path) -> None:
    model, layout = made("gpt2 with a cache", 0)
    SPOILED[kind](Pen(model), layout)
    onnx.save(model, tmp_path / "model.onnx")
    assert not find_truth(str(tmp_path / "model.onnx"), layout, 0).right


def test_plan_is_repeatable() -> None:
    assert plan(5, 2) == plan(5, 2)
    assert plan(5, 2) != plan(6, 2)
    assert np.unique([kind for _, kind in plan(5, 2)]).size == len(plan(5, 2)) // 2
