"""Up to which length a model of others is examined: the longest that runs."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify import verify
from causal_attn.verify.checks.proof import PROOF
from causal_attn.verify.interface import runnable
from causal_attn.verify.interface.graph_lengths import GraphLengths
from causal_attn.verify.report import VariantReport


def model(path: Path, rows: int, open_at: int) -> Path:
    """Attention with a table of `rows` positions, without a mask at `open_at` tokens."""
    parsed = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64 zero = {0}, int64 one = {1}>
        {
            length = Shape <start = 1, end = 2> (x)
            count = Squeeze (length)
            places = Range (zero, count, one)
            position = Gather (table, places)
            h = Add (x, position)
            turned = Transpose <perm = [0, 2, 1]> (h)
            scores = MatMul (h, turned)
            square = Concat <axis = 0> (length, length)
            all = Expand (true, square)
            seen = Trilu <upper = 0> (all)
            broken = Equal (count, open)
            shown = Or (seen, broken)
            masked = Where (shown, scores, hidden)
            weights = Softmax (masked)
            y = MatMul (weights, h)
        }
        """
    )
    table = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    stored = {"table": table, "true": np.array(True), "hidden": np.float32(-np.inf)}
    stored["open"] = np.array(open_at)
    parsed.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()
    )
    onnx.checker.check_model(parsed)
    onnx.save(parsed, path)
    return path


def report(path: Path) -> VariantReport:
    (one,) = verify(path).variants
    return one


def proof_of(found: VariantReport) -> str:
    (check,) = (check for check in found.certificate.checks if check.name == PROOF)
    return check.detail


@pytest.mark.parametrize("rows", [40, 64])
def test_the_end_of_a_table_is_found_by_halving(tmp_path: Path, rows: int) -> None:
    found = report(model(tmp_path / "m.onnx", rows, -1))
    assert found.certificate.verdict is Verdict.CAUSAL
    assert any(note.startswith(f"lengths above {rows}: ") for note in found.not_checked)
    assert proof_of(found) == f"causal at 1 to {rows} tokens, and for every length"


def test_without_an_end_a_far_length_is_examined(tmp_path: Path) -> None:
    found = report(model(tmp_path / "m.onnx", 300, -1))
    assert proof_of(found) == "causal at 1 to 64, 257 tokens, and for every length"
    (check,) = (check for check in found.certificate.checks if check.name == PROOF)
    assert check.figures["every_length"] is True


@pytest.mark.parametrize("open_at", [7, 20, 64])
def test_a_leak_at_one_length_fails(tmp_path: Path, open_at: int) -> None:
    """The probes do not run there; the proof does, and its path is there whatever the data is."""
    found = report(model(tmp_path / "m.onnx", 64, open_at))
    assert found.certificate.verdict is Verdict.NOT_CAUSAL
    assert found.leak is not None
    assert found.leak.tokens == open_at


@pytest.mark.parametrize("masked", [True, False])
def test_a_dim_whose_name_is_a_number_is_of_that_size(tmp_path: Path, masked: bool) -> None:
    """torch writes the size of a decode stage as a name."""
    path = tmp_path / "m.onnx"
    hidden = "0, -inf, 0, 0" if masked else "0, 0, 0, 0"
    parsed = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <float[2, 2] mask = {{{hidden}}}>
        {{
            turned = Transpose <perm = [0, 2, 1]> (x)
            scores = MatMul (x, turned)
            masked = Add (scores, mask)
            weights = Softmax (masked)
            y = MatMul (weights, x)
        }}
        """
    )
    for value in (*parsed.graph.input, *parsed.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "2"
    onnx.save(parsed, path)
    (found,) = verify(path, tokens_axis={"x": 1}).variants
    assert found.certificate.passed is masked
    assert found.visibility["y"].shape == (2, 2)


def test_one_slow_moment_does_not_end_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls at a length, the first takes a second, the other a millisecond."""
    # One call comes before: whether it runs at all.
    took = cycle((0.001, 1.0))
    clock = 0.0

    def runs(*_: object) -> str:
        nonlocal clock
        clock += next(took)
        return ""

    monkeypatch.setattr(runnable, "_failure", runs)
    monkeypatch.setattr("time.monotonic", lambda: clock)
    interface: Any = SimpleNamespace(feeder=SimpleNamespace(pinned={}))
    session: Any = None
    reach, left = runnable.find_reach(session, interface, 5, GraphLengths(compared=(512,)))
    assert reach > 512
    assert not left
