"""What a tester found wrong once, kept so that it stays mended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from causal_attn import AttentionSpec
from causal_attn.errors import CheckError, UsageError
from causal_attn.export import export
from causal_attn.package.certificate import Verdict
from causal_attn.verify import verify

LENGTHS = (1, 2, 9)
DIMS = {"x": ("batch", "tokens", None)}


def save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}'), path)
    return path


def test_an_output_whose_dims_have_other_names_is_examined(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        """g (float[batch, tokens, 4] x) => (float[batch, d, 4] logits, float[batch, tokens, 4] c)
        <int64 one = {1}, int64[1] axes = {1}> {
            c = CumSum (x, one)
            mean = ReduceMean (x, axes)
            logits = Add (c, mean)
        }""",
    )
    report = verify(path, lengths=LENGTHS)
    assert report.exit_code == 1
    assert report.variants[0].certificate.verdict is Verdict.NOT_CAUSAL


def test_an_input_whose_axis_is_not_known_is_named(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        """g (float[batch, tokens, 4] x, float[batch, n, 4] z) => (float[batch, tokens, 4] y)
        <int64 one = {1}, int64[1] axes = {1}> {
            c = CumSum (x, one)
            mean = ReduceMean (z, axes)
            y = Add (c, mean)
        }""",
    )
    report = verify(path, lengths=LENGTHS)
    assert any("'z': axis 1 is dynamic" in note for note in report.variants[0].not_checked)
    assert verify(path, tokens_axis={"x": 1, "z": 1}, lengths=LENGTHS).exit_code == 1


def test_parity_runs_where_floats_meet_constants(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        """g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64 one = {1}, float[4] bias = {1, 2, 3, 4}> {
            c = CumSum (x, one)
            y = Add (c, bias)
        }""",
    )
    report = verify(path, lengths=LENGTHS)
    assert report.exit_code == 0
    assert "parity" in {check.name for check in report.variants[0].certificate.checks}


def test_an_output_that_is_no_tensor(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        """g (float[batch, tokens, 4] x) => (seq(float[batch, tokens, 4]) y)
        { y = SequenceConstruct (x) }""",
    )
    with pytest.raises(UsageError, match="tensors of numbers"):
        verify(path)


def test_files_beside_a_package_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "p"
    export(AttentionSpec(), path, lengths=LENGTHS)
    export(AttentionSpec(), path, lengths=LENGTHS)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        export(AttentionSpec(), path, lengths=LENGTHS)
    assert (path / "notes.txt").read_text() == "mine"


def test_the_callers_module_keeps_its_dtype(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.linear(torch.cumsum(x, 1))
            return result

    module = Sums()
    export(
        module, tmp_path / "p", example_inputs=(torch.randn(2, 9, 4),), dims=DIMS,
        dtype="float16", lengths=LENGTHS,
    )  # fmt: skip
    assert module.linear.weight.dtype is torch.float32


def test_a_kernel_that_saturates_is_caught(tmp_path: Path) -> None:
    def gate(x: Tensor) -> Tensor:
        return torch.log(torch.sigmoid(x)).cumsum(1)

    with pytest.raises(CheckError, match=r"large inputs: \['output'\] are not finite"):
        export(
            gate, tmp_path / "p", example_inputs=(torch.randn(2, 9, 4),), dims=DIMS,
            lengths=LENGTHS,
        )  # fmt: skip


def test_sizes_beyond_memory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fit into memory"):
        export(AttentionSpec(head_dim=10**12), tmp_path / "p")


def test_what_the_users_file_prints_does_not_reach_stdout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import json

    from causal_attn.cli import main

    (tmp_path / "noisy.py").write_text(
        "import torch\nprint('hello')\n\ndef sums(x):\n    return torch.cumsum(x, 1)\n"
    )
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((2, 9, 4)).astype(np.float32))
    with pytest.raises(SystemExit) as caught:
        main(
            ["export", f"{tmp_path}/noisy.py:sums", "-o", f"{tmp_path}/p", "--json",
             "--example", f"{tmp_path}/x.npy", "--dims", "x=batch,tokens,_"]
        )  # fmt: skip
    assert caught.value.code == 0
    assert json.loads(capfd.readouterr().out)["variants"][0]["passed"] is True
