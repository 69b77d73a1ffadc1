"""The list of checks: the same for export and verify, and ended by a graph that does not run."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from causal_attn.export import export
from causal_attn.machine.provider import Provider
from causal_attn.verify import verify
from causal_attn.verify.checks import all_checks
from causal_attn.verify.checks.all_checks import OF_RUNS, OF_THE_FILE, run_checks
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.oracle.yardstick import Yardstick
from causal_attn.verify.subject import Subject, read_subjects


def sums(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, 1)


def frozen(path: Path) -> Subject:
    """A sum that adds nine zeros, one a token: it runs at nine tokens and at one."""
    onnx.save(
        onnx.parser.parse_model(
            """
            <ir_version: 8, opset_import: ["" : 18]>
            sums (float[batch, tokens, 1] x) => (float[batch, tokens, 1] y)
            <int64 one = {1}, float[1, 9, 1] zeros = {0, 0, 0, 0, 0, 0, 0, 0, 0}>
            { sums = CumSum (x, one)  y = Add (sums, zeros) }
            """
        ),
        path,
    )
    (subject,) = read_subjects(path)
    return subject


def test_export_and_verify_ask_the_same_in_the_same_order(tmp_path: Path) -> None:
    lengths = (1, 2, 9)
    package = export(
        sums,
        tmp_path / "p",
        example_inputs=(torch.randn(2, 9, 4),),
        dims={"x": ("batch", "tokens", None)},
        lengths=lengths,
    )
    certificate = package.variants[0].certificate
    assert certificate is not None
    asked = [check.name for check in certificate.checks]
    again = verify(package.root, lengths=lengths).variants[0].certificate.checks
    assert asked == [check.name for check in again]
    known = [*OF_THE_FILE, *OF_RUNS]
    assert asked == [name for name in known if name in asked]


def test_a_graph_that_does_not_run_is_asked_nothing_more(tmp_path: Path) -> None:
    subject = frozen(tmp_path / "m.onnx")

    def itself(feeds: dict[str, object]) -> dict[str, object]:
        return {"y": feeds["x"]}

    with subject.open(Provider.CPU) as session:
        trial = Trial(
            session=session,
            feeder=subject.interface.feeder,
            yardstick=Yardstick(oracle=itself, baseline=itself),  # type: ignore[arg-type]
            lengths=(2, 5),
        )
        checks = run_checks(trial)
    assert [check.name for check in checks] == ["placement", "parity"]
    assert checks[-1].passed is False
    assert not checks[-1].ran


def test_an_error_of_the_engine_in_any_check_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of checks that do not look for it, such as one whose own sizes are the first to fail."""
    subject = frozen(tmp_path / "m.onnx")
    only = {"past matters": OF_RUNS["past matters"], "weights": OF_RUNS["weights"]}
    monkeypatch.setattr(all_checks, "OF_RUNS", only)
    with subject.open(Provider.CPU) as session:
        trial = Trial(session=session, feeder=subject.interface.feeder, lengths=(2, 5))
        (check,) = run_checks(trial)
    assert (check.name, check.passed, check.ran) == ("runs", False, False)
    assert "'past matters'" in check.detail
