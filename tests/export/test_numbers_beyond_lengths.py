"""A graph that compares a length or a position with a number is checked on both sides of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from causal_attn.errors import CheckError
from causal_attn.export import export


class Hole(nn.Module):
    """Causal, except that row `row` sees position `position`."""

    def __init__(self, row: int, position: int) -> None:
        super().__init__()
        self.row, self.position = row, position

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        row, position = at[:, None], at[None, :]
        seen = (row >= position) | ((row == self.row) & (position == self.position))
        return nn.functional.scaled_dot_product_attention(q, k, v, seen)


@pytest.mark.parametrize(
    ("row", "position", "lengths"), [(309, 310, None), (150, 152, (1, 2, 33))]
)
def test_a_hole_behind_every_length_is_found(
    tmp_path: Path, row: int, position: int, lengths: tuple[int, ...] | None
) -> None:
    inputs = tuple(torch.randn(1, 1, 9, 4) for _ in range(3))
    with pytest.raises(CheckError, match=r"future is invisible|prefixes agree"):
        export(Hole(row, position), tmp_path / "hole", example_inputs=inputs, lengths=lengths)
    assert not (tmp_path / "hole").exists()


def test_a_hole_that_is_causal_is_exported(tmp_path: Path) -> None:
    inputs = tuple(torch.randn(1, 1, 9, 4) for _ in range(3))
    (variant,) = export(Hole(310, 309), tmp_path / "whole", example_inputs=inputs).variants
    assert variant.certificate is not None
    (agree,) = [item for item in variant.certificate.checks if item.name == "prefixes agree"]
    assert "rows of 312 tokens" in agree.detail, agree.detail
