"""Regions of autocast and of gradients: attention in them is captured, autocast itself refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_attn.errors import CaptureError
from causal_attn.export import export
from causal_attn.package import Package
from causal_attn.runtime import load


class InRegions(nn.Module):
    """Attention in a region in another; the outer one also returns what it was given."""

    def __init__(self, *, autocast: bool) -> None:
        super().__init__()
        self.qkv, self.autocast = nn.Linear(8, 24), autocast

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            q, k, v = self.qkv(x).chunk(3, -1)
            with torch.enable_grad():
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            scaled = y * 2
        return y, scaled


class OnlyRegion(nn.Module):
    """A region whose one result is the module's."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.enable_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def exported(module: nn.Module, folder: Path) -> Package:
    return export(
        module,
        folder / "p",
        example_inputs=(torch.randn(2, 9, 8),),
        dims={"x": ("batch", "tokens", None)},
        lengths=(1, 2, 5),
        measure=False,
    )


def test_attention_in_regions_is_captured(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = InRegions(autocast=False)
    package = exported(module, tmp_path)
    assert package.variants[0].contract.form == "decomposed"
    x = torch.randn(3, 11, 8)
    with load(package.root, provider="cpu") as session, torch.no_grad():
        for result, right in zip(session(x.numpy()), module(x), strict=True):
            np.testing.assert_allclose(result, right.numpy(), atol=1e-6)


def test_a_region_alone_is_the_result(tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    package = export(
        OnlyRegion(), tmp_path / "p", example_inputs=(q, k, v), lengths=(1, 2, 5), measure=False
    )
    assert package.variants[0].contract.form == "decomposed"
    with load(package.root, provider="cpu") as session:
        (result,) = session(*(tensor.numpy() for tensor in (q, k, v)))
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(result, right.numpy(), atol=1e-6)


def test_autocast_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"got a region of torch\.autocast to torch\.bfloat16"):
        exported(InRegions(autocast=True), tmp_path)
