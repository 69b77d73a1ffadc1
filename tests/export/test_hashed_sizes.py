"""What code keeps by a length, in a cache of functions or a dict, is made anew for the trace."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from causal_attn.export import export
from causal_attn.runtime import load


@lru_cache
def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, Tensor] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens = q.shape[-2]
        if tokens not in self.places:
            self.places[tokens] = torch.arange(tokens).float().cos()[:, None]
        place = self.places[tokens]
        return scaled_dot_product_attention(q * place, k * place, v, causal(tokens))


def test_what_is_kept_for_a_length_is_made_for_every_length(tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 2, 7, 4) for _ in range(3))
    module = Kept()
    module(q, k, v)
    package = export(
        module, tmp_path / "p", example_inputs=(q, k, v), lengths=(1, 2, 7), measure=False
    )
    assert package.variants[0].contract.choice["captured"]["attend"] == 1
    q, k, v = (torch.randn(1, 2, 20, 4) for _ in range(3))
    with load(package.root) as session:
        (got,) = session(*(tensor.numpy() for tensor in (q, k, v)))
    np.testing.assert_allclose(got, module(q, k, v).numpy(), atol=1e-6)
    assert all(type(tokens) is int for tokens in module.places)
