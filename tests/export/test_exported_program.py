"""Programs of torch.export are taken as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import scaled_dot_product_attention

from causal_attn.cli.find_target import find_target, require_target
from causal_attn.errors import CaptureError, InputError, UsageError
from causal_attn.export import export
from causal_attn.package import read_package
from causal_attn.runtime import load

LENGTHS = (1, 2, 7)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24)

    def forward(
        self, x: Tensor, past: dict[str, Tensor] | None = None, half: bool = False
    ) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).flatten(2)
        y = y + past["shift"] if past is not None else y
        return y / 2 if half else y


X = torch.randn(2, 5, 8)


def traced(most: int | None = None, **kwargs: object) -> ExportedProgram:
    axes = {0: Dim("n"), 1: Dim("t", max=most)}
    shapes = {"x": axes, "past": {"shift": None}, "half": None}
    shapes = {name: shapes[name] for name in ("x", *kwargs)}
    return torch.export.export(Block(), (), {"x": X, **kwargs}, dynamic_shapes=shapes)


def test_a_program_says_all_that_is_needed(tmp_path: Path) -> None:
    package = export(traced(64), tmp_path / "p", lengths=LENGTHS, measure=False)
    contract = package.variants[0].contract
    assert contract.inputs[0].dims == ("batch", "tokens", 8)
    assert contract.bounds == {"tokens": (1, 64)}
    assert contract.form != "captured"
    with load(tmp_path / "p") as session:
        got = session(X.numpy())[0]
    np.testing.assert_allclose(got, Block()(X).detach().numpy(), atol=1e-6)


def test_nested_inputs_and_flags_stay_as_they_were_traced(tmp_path: Path) -> None:
    shift = torch.randn(8)
    program = traced(past={"shift": shift}, half=True)
    package = export(program, tmp_path / "p", lengths=LENGTHS, measure=False)
    names = [tensor.name for tensor in package.variants[0].contract.inputs]
    with load(tmp_path / "p") as session:
        got = session(X.numpy(), shift.numpy())[0]
    want = Block()(X, {"shift": shift}, True)
    np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-6)
    assert names == ["x", "past_shift"]


def test_a_program_of_one_size_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(Block(), (X,))
    with pytest.raises(InputError, match="one axis of an input 'tokens'"):
        export(program, tmp_path / "p")
    with pytest.raises(CaptureError, match="the code fixes it"):
        export(program, tmp_path / "p", dims={"x": {1: "tokens"}})


def test_axes_that_nothing_names_are_asked_for(tmp_path: Path) -> None:
    class Two(Block):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x) + super().forward(y).sum(1, keepdim=True)

    shapes = {"x": {1: Dim("s")}, "y": {1: Dim("t")}}
    program = torch.export.export(Two(), (X, torch.randn(2, 6, 8)), dynamic_shapes=shapes)
    with pytest.raises(InputError, match="which dynamic axis of the program holds the tokens"):
        export(program, tmp_path / "p")


def test_a_file_of_a_program_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "block.pt2"
    with pytest.raises(UsageError, match="a file that exists"):
        require_target(str(file))
    torch.export.save(traced(), file)
    export(find_target(str(file)), tmp_path / "p", lengths=LENGTHS, measure=False)
    assert read_package(tmp_path / "p").variants[0].contract.tokens == "tokens"
    file.write_bytes(b"PK")
    with pytest.raises(UsageError, match="a program of torch"):
        find_target(str(file))
