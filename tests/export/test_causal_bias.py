"""The causal biases of ``torch.nn.attention.bias`` are attention as the op has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import bias
from torch.nn.functional import scaled_dot_product_attention

from causal_attn.export import export
from causal_attn.runtime import load


@pytest.mark.parametrize("kind", [bias.causal_lower_right, bias.causal_upper_left])
def test_a_causal_bias(tmp_path: Path, kind: Callable[[int, int], Any]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, kind(q.shape[-2], k.shape[-2]))

    q, k, v = (torch.randn(2, 2, 7, 4) for _ in range(3))
    package = export(
        attend, tmp_path / "p", example_inputs=(q, k, v), lengths=(1, 2, 7), measure=False
    )
    assert package.variants[0].contract.choice["captured"]["attend"] == 1
    with load(tmp_path / "p") as session:
        got = session(*(tensor.numpy() for tensor in (q, k, v)))[0]
    want = scaled_dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-6)
