"""`nn.TransformerEncoder` with a mask and no hint, as PyTorch's language-model tutorial has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from causal_attn.errors import CheckError
from causal_attn.export import export
from causal_attn.package.certificate import Verdict

LENGTHS = (1, 2, 5, 13)


class Encoder(nn.Module):
    """Tokens first, batch second; two layers with dropout."""

    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.2)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, src: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(0))
        result: Tensor = self.layers(src, mask if self.causal else mask.clamp(min=-1.0))
        return result


def test_a_mask_without_a_hint_is_captured(tmp_path: Path) -> None:
    package = export(
        Encoder(),
        tmp_path / "p",
        example_inputs=(torch.randn(9, 2, 16),),
        dims={"src": ("tokens", "batch", None)},
        lengths=LENGTHS,
        measure=False,
    )
    (variant,) = package.variants
    assert variant.contract.choice["captured"]["attend"] == 2
    assert variant.certificate is not None
    assert variant.certificate.verdict is Verdict.CAUSAL


def test_a_mask_that_hides_nothing_is_applied_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="not causal"):
        export(
            Encoder(causal=False),
            tmp_path / "p",
            example_inputs=(torch.randn(9, 2, 16),),
            dims={"src": ("tokens", "batch", None)},
            lengths=LENGTHS,
            measure=False,
        )
    assert list(tmp_path.iterdir()) == []
