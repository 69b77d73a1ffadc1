"""Buffers that ``forward`` makes hold for every length, and keep nothing of the trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from causal_attn.export import export
from causal_attn.runtime import load


class Lazy(nn.Module):
    seen: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        if self.seen is None or self.seen.shape[0] != tokens:
            made = torch.ones(tokens, tokens).tril()
            self.register_buffer("seen", made.type_as(x.data), persistent=False)
        assert self.seen is not None
        scores = (x @ x.mT).masked_fill(self.seen == 0, -torch.inf)
        return x + scores.softmax(-1) @ x


def test_a_buffer_that_forward_makes(tmp_path: Path) -> None:
    module = Lazy()
    package = export(
        module, tmp_path / "p", example_inputs=(torch.randn(2, 7, 4),),
        dims={"x": ("batch", "tokens", None)}, lengths=(1, 2, 7), measure=False,
    )  # fmt: skip
    assert package.variants[0].contract.bounds == {}
    # What the trace made is gone: a buffer, if there is one, holds numbers.
    assert type(module._buffers["seen"]) in (Tensor, type(None))
    x = torch.randn(1, 20, 4)
    with load(package.root) as session:
        (got,) = session(x.numpy())
    np.testing.assert_allclose(got, module(x).numpy(), atol=1e-6)
