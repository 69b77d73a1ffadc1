"""Positions that count down by a float, as relative attention has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from causal_attn.export import export
from causal_attn.runtime import load


def down(tokens: int) -> Tensor:
    return torch.arange(tokens - 1, -1, -1.0).flip(0)


def down_by_name(tokens: int) -> Tensor:
    return torch.arange(start=tokens - 1, end=-1, step=-1.0, dtype=torch.float32).flip(0)


def up(tokens: int) -> Tensor:
    return torch.arange(1.0, tokens + 1)


@pytest.mark.parametrize("places", [down, down_by_name, up])
def test_positions_by_whole_floats(tmp_path: Path, places: Callable[[int], Tensor]) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = places(q.shape[-2])
        assert place.is_floating_point()
        return F.scaled_dot_product_attention(q, k + place[:, None].sin(), v, is_causal=True)

    q, k, v = (torch.randn(2, 3, 9, 8) for _ in range(3))
    package = export(
        attention, tmp_path / "p", example_inputs=(q, k, v), lengths=(1, 2, 7), measure=False
    )
    q, k, v = (torch.randn(1, 3, 20, 8) for _ in range(3))
    with load(package.root, provider="cpu") as session:
        (result,) = session(q.numpy(), k.numpy(), v.numpy())
    np.testing.assert_allclose(result, attention(q, k, v).numpy(), atol=1e-5)


def test_steps_that_are_no_whole_numbers_stay(tmp_path: Path) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(0, q.shape[-2], 1.0) / 2
        half = torch.arange(0, 2, 0.5)
        return F.scaled_dot_product_attention(q, k, v + place[:, None] * half, is_causal=True)

    q, k, v = (torch.randn(2, 3, 9, 4) for _ in range(3))
    dims = dict.fromkeys("qkv", ("batch", "heads", "tokens", None))
    package = export(
        attention, tmp_path / "p", example_inputs=(q, k, v), dims=dims, lengths=(1, 2, 7),
        measure=False,
    )  # fmt: skip
    with load(package.root, provider="cpu") as session:
        (result,) = session(q.numpy(), k.numpy(), v.numpy())
    np.testing.assert_allclose(result, attention(q, k, v).numpy(), atol=1e-5)
