"""`len` of a tensor of dynamic size is that size, not the example's."""

from __future__ import annotations

import builtins
from pathlib import Path

import torch
from torch import Tensor, nn

from causal_attn.export import export


class TokensFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        q = x.transpose(0, 1)
        scores = (q @ q.transpose(1, 2)).masked_fill(future, float("-inf"))
        return (scores.softmax(-1) @ q).transpose(0, 1)


def test_len_of_a_tensor_stays_dynamic(tmp_path: Path) -> None:
    counted = builtins.len
    package = export(
        TokensFirst(),
        tmp_path / "package",
        example_inputs=(torch.randn(5, 2, 8),),
        dims={"x": ("tokens", "batch", None)},
        lengths=(1, 2, 7),
        measure=False,
    )
    certificate = package.variants[0].certificate
    assert certificate is not None
    assert certificate.verdict == "causal"
    assert builtins.len is counted
