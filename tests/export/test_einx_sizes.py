"""einx's elementwise operations at any length, as they are at one."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from causal_attn.export import export
from causal_attn.export.capture.einx_sizes import einx_sizes

einx: Any = importlib.import_module("einx")


def one(*sizes: int) -> Tensor:
    return torch.randn(sizes).abs() + 0.5


class Operation(nn.Module):
    def __init__(self, name: str, description: str) -> None:
        super().__init__()
        self.name, self.description = name, description

    def forward(self, *inputs: Any) -> Any:
        return getattr(einx, self.name)(self.description, *inputs)


@pytest.mark.parametrize(
    ("name", "description", "inputs"),
    [
        ("subtract", "j, i -> i j", (one(5), one(3))),
        ("subtract", "j, i -> 1 i j", (one(5), one(3))),
        ("subtract", "... j, ... i -> ... i j", (one(5), one(3))),
        ("subtract", "... j, ... i -> ... i j", (one(5, 2, 4), one(5, 2, 3))),
        ("less", "n d, d -> d n", (one(5, 3), one(3))),
        ("equal", "n, m -> n m", (one(5), one(3))),
        ("multiply", "n, n d, d -> n d", (one(5), one(5, 3), one(3))),
        ("divide", "n d, -> n d", (one(5, 3), 2)),
        ("where", "n, n d, -> n d", (one(5) > 1, one(5, 3), 0.0)),
        ("maximum", "n d, d -> n d", (one(5, 3), one(3))),
    ],
)
def test_an_operation_is_einx_s_at_other_lengths(
    name: str, description: str, inputs: tuple[Any, ...]
) -> None:
    """Sizes of 5 are dynamic, and 10 afterwards."""
    grows = [isinstance(value, Tensor) and value.shape[0] == 5 for value in inputs]
    dims = tuple({0: torch.export.Dim("n")} if grow else None for grow in grows)
    with einx_sizes():
        program = torch.export.export(
            Operation(name, description), inputs, dynamic_shapes={"inputs": dims}
        )
    longer = [
        torch.cat((value, value)) if grow else value
        for value, grow in zip(inputs, grows, strict=True)
    ]
    got, want = program.module()(*longer), getattr(einx, name)(description, *longer)
    assert got.dtype is want.dtype
    assert torch.equal(got, want)


def test_what_is_no_broadcast_stays_einx_s() -> None:
    """Composed axes, brackets, numbers and options; and afterwards all is as it was."""
    before = einx.add
    with einx_sizes():
        assert einx.add is not before
        assert einx.add("(b s) d, s d -> b s d", one(6, 4), one(3, 4)).shape == (2, 3, 4)
        with pytest.raises(Exception, match="output"):
            einx.add("a, b", one(2), one(3))
    assert einx.add is before


class Alibi(nn.Module):
    """Distances made with einx, as x-transformers makes them."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        ahead = einx.subtract("j, i -> i j", places, places)
        scores = x @ x.mT - 0.1 * ahead.abs()
        weights = scores.masked_fill(ahead > 0, float("-inf")).softmax(-1)
        rows: Tensor = einx.multiply("b i d, d -> b i d", weights @ x, torch.arange(8.0))
        return rows


def test_a_bias_by_distance_is_exported(tmp_path: Path) -> None:
    package = export(
        Alibi(),
        tmp_path / "package",
        example_inputs=(torch.randn(2, 5, 8),),
        dims={"x": ("batch", "tokens", None)},
        lengths=(1, 2, 7),
        measure=False,
    )
    certificate = package.variants[0].certificate
    assert certificate is not None
    assert certificate.verdict == "causal"
