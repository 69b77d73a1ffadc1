"""Rotary embeddings written as one node, for batches of more than one sequence."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_attn.export import export


class Rotated(nn.Module):
    """Attention of two heads of 8 with rotary embeddings, angles computed for one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        inverse = 1 / 100 ** (torch.arange(0, 8, 2) / 8)
        angles = torch.arange(tokens)[None, :, None] * inverse
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        q, k = (tensor * cos + _half_turned(tensor) * sin for tensor in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)


def _half_turned(tensor: Tensor) -> Tensor:
    left, right = tensor[..., :4], tensor[..., 4:]
    return torch.cat([-right, left], dim=-1)


def test_a_fused_rotation_takes_any_batch(tmp_path: Path) -> None:
    """The lengths of the check come with batches of 1, 2 and 3."""
    package = export(
        Rotated(), tmp_path / "p", form="decomposed", opset=23, lengths=(1, 2, 7, 13),
        example_inputs=(torch.randn(2, 9, 16),), dims={"x": ("batch", "tokens", None)},
    )  # fmt: skip
    nodes = onnx.load(package.variants[0].model).graph.node
    assert any(node.op_type == "RotaryEmbedding" for node in nodes)
