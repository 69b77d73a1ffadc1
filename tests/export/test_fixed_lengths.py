"""A length that code makes a number is refused with the line that does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from causal_attn.errors import CaptureError
from causal_attn.export import export


def as_integer(x: Tensor) -> Tensor:
    return x.cumsum(1) + torch.arange(int(x.shape[1]))[:, None]


def as_a_loop(x: Tensor) -> Tensor:
    return torch.stack([x[:, : at + 1].sum(1) for at in range(x.shape[1])], 1)


@pytest.mark.parametrize(
    ("target", "code"), [(as_integer, r"int\(x\.shape\[1\]\)"), (as_a_loop, r"range\(x\.shape")]
)
def test_the_line_is_named(tmp_path: Path, target: Callable[[Tensor], Tensor], code: str) -> None:
    with pytest.raises(CaptureError, match=rf"number in test_fixed_lengths\.py:\d+: .*{code}"):
        export(
            target,
            tmp_path / "p",
            example_inputs=(torch.randn(2, 6, 4),),
            dims={"x": ("batch", "tokens", None)},
        )
