"""Views of what attention returns: they hold whatever layout the op's result has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_attn.attention.operator import ATTEND
from causal_attn.export import export
from causal_attn.export.capture.sdpa import SDPA, lower_sdpa
from causal_attn.export.capture.trace import capture
from causal_attn.export.forms.decomposed import DECOMPOSED
from causal_attn.export.target import user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.runtime import load

HEADS, WIDTH = 2, 16

Shape = Callable[[Tensor, int, int], Tensor]
"""``(y [batch, heads, tokens, features], batch, tokens) -> [batch, tokens, width]``."""

VIEWS: dict[str, Shape] = {
    "view": lambda y, b, t: y.transpose(1, 2).contiguous().view(b, t, WIDTH),
    "view without a copy": lambda y, b, t: y.transpose(1, 2).view(b, t, WIDTH),
    "view of one axis unknown": lambda y, b, t: y.transpose(1, 2).contiguous().view(b, t, -1),
    "view of rows": lambda y, b, t: (y.transpose(1, 2).contiguous().view(b * t, WIDTH) + 1).view(
        b, t, WIDTH),
    "view as another": lambda y, b, t: y.transpose(1, 2).view_as(torch.empty(b, t, WIDTH)),
    "flatten": lambda y, b, t: y.transpose(1, 2).contiguous().flatten(2),
    "unflatten": lambda y, b, t: y.transpose(1, 2).view(b, t, WIDTH).unflatten(2, (4, 4)).view(
        b, t, WIDTH),
    "unflatten from the end": lambda y, b, t: y.permute(0, 2, 3, 1).unflatten(-1, (1, 2)).flatten(
        2),
    "split": lambda y, b, t: torch.cat(
        [part.view(b, t, -1) for part in y.transpose(1, 2).split(1, 2)], -1),
    "chunk": lambda y, b, t: torch.cat(
        [part.contiguous().view(b, t, -1) for part in y.transpose(1, 2).chunk(2, 3)], -1),
    "stepping": lambda y, b, t: y.transpose(1, 2).contiguous().view(b, t, WIDTH)[..., ::2].repeat(
        1, 1, 2),
    "written to": lambda y, b, t: y.transpose(1, 2).contiguous().view(b, t, WIDTH).mul_(2),
}  # fmt: skip


class Attention(nn.Module):
    """The attention of a block as most people write it; `shape` puts the heads together."""

    def __init__(self, shape: Shape, *, window: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.shape, self.window = shape, window

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            part.view(batch, tokens, HEADS, -1).transpose(1, 2)
            for part in self.qkv(x).split(WIDTH, dim=2)
        )
        mask = None
        if self.window:
            ones = torch.ones(tokens, tokens, dtype=torch.bool)
            mask = ones.tril() & ones.triu(-3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        result: Tensor = self.out(self.shape(y, batch, tokens))
        return result


EXAMPLE: dict[str, Any] = {
    "example_inputs": (torch.randn(2, 7, WIDTH),),
    "dims": {"x": ("batch", "tokens", None)},
}


@pytest.mark.parametrize(
    ("name", "window"), [*((name, False) for name in VIEWS), ("view", True), ("unflatten", True)]
)
def test_a_view_is_a_reshape(name: str, window: bool) -> None:
    module = Attention(VIEWS[name], window=window).eval()
    program = capture(user_target(module, **EXAMPLE, dtype=None), ExportLog()).program
    lowered = program.run_decompositions({ATTEND: DECOMPOSED.decompose, SDPA: lower_sdpa}).module()
    for batch, tokens in ((1, 1), (3, 2), (2, 11)):
        x = torch.randn(batch, tokens, WIDTH)
        torch.testing.assert_close(lowered(x=x), module(x))


def test_the_program_knows_the_strides_it_has() -> None:
    program = capture(
        user_target(Attention(VIEWS["view"]), **EXAMPLE, dtype=None), ExportLog()
    ).program
    (attend,) = program.graph.find_nodes(op="call_function", target=ATTEND)
    (output,) = attend.users
    (turned,) = output.users
    (joined,) = turned.users
    batch, heads, tokens, features = output.meta["val"].shape
    assert output.meta["val"].stride() == (heads * tokens * features, tokens * features, 8, 1)
    assert turned.meta["val"].stride() == (heads * tokens * features, 8, tokens * features, 1)
    assert joined.meta["val"].shape == (batch, tokens, WIDTH)
    assert joined.meta["val"].is_contiguous()


@pytest.mark.parametrize("form", ["decomposed", "attention", "gqa", "blocked"])
def test_every_form_takes_it(tmp_path: Path, form: str) -> None:
    module = Attention(VIEWS["view"]).eval()
    export(module, tmp_path / "p", form=form, **EXAMPLE, lengths=(1, 2, 5, 33))
    x = torch.randn(3, 19, WIDTH)
    with load(tmp_path / "p") as session, torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(session(x.numpy()).output), module(x))


def test_torch_compile_takes_it() -> None:
    module = Attention(VIEWS["view"]).eval()
    compiled = torch.compile(module, backend="causal_attn", dynamic=True)
    with torch.no_grad():
        for tokens in (7, 19):
            x = torch.randn(3, tokens, WIDTH)
            torch.testing.assert_close(compiled(x), module(x))
