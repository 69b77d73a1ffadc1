"""Complex numbers in a module: rotary tables and the arithmetic around them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from causal_attn.errors import CaptureError
from causal_attn.export import export
from causal_attn.runtime import load

DIMS = {"x": ("batch", "tokens", None)}


def angles(tokens: int, width: int) -> Tensor:
    rates = 10000.0 ** (-torch.arange(width) / width)
    return torch.outer(torch.arange(tokens).float(), rates)


class Rotary(nn.Module):
    """Attention whose queries and keys are turned by a complex table, as in Meta's Llama."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        turned = angles(64, 4)
        table = torch.polar(torch.ones_like(turned), turned)
        if buffer:
            self.register_buffer("table", table, persistent=False)
        else:
            self.table = table

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        # torch.export keeps what the table's dtype is beside the conversion.
        table = self.table.to(x.device)
        turned = torch.view_as_real(pairs * table[:tokens].unsqueeze(0)).flatten(2)
        turned = turned + torch.view_as_real(self.table).mean()
        scores = turned @ turned.transpose(1, 2)
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1) == 1, -torch.inf)
        return scores.softmax(-1) @ x


class Arithmetic(nn.Module):
    """Every rule once, each result summed along the past so that it is seen."""

    def forward(self, x: Tensor) -> Mapping[str, Tensor]:
        tokens = x.shape[1]
        a = torch.complex(x[..., :4], x[..., 4:])
        b = torch.exp(1j * angles(tokens, 4)) * (2 - 0.5j)
        b = (b + 1) / (3 + a.abs().detach() * 0) - a * 0.25
        found = {
            "product": a * b,
            "quotient": a / (b + (20 + 3j)),
            "sum": a[:, :, :1] + b.real + (1j - b),
            "reciprocal": (a + 9j).reciprocal(),
            "conjugate": a.conj() * b.conj().unsqueeze(1).squeeze(1),
            "picked": torch.cat([a, b], -1)[..., 2:6].flip(-1),
            "contracted": torch.einsum("btd,btd->bt", a, b.conj())[..., None],
            "multiplied": a @ (a[:, :1, :].mT * 0 + (1 + 2j)),
        }
        real = {name: torch.view_as_real(value).flatten(2) for name, value in found.items()}
        real |= {"angle": (a + 9).angle(), "imag": b.imag, "to": x.to(torch.complex64).real}
        return {name: value.cumsum(1) for name, value in real.items()}


@pytest.mark.parametrize("buffer", [True, False])
def test_a_complex_table(tmp_path: Path, buffer: bool) -> None:
    module = Rotary(buffer=buffer)
    package = export(
        module,
        tmp_path / "p",
        example_inputs=(torch.randn(2, 6, 8),),
        dims=DIMS,
        lengths=(1, 2, 7, 33),
        measure=False,
    )
    assert package.variants[0].contract.bounds == {"tokens": (1, 64)}
    x = torch.randn(3, 64, 8)
    with load(tmp_path / "p") as session:
        got = session(x.numpy())[0]
    np.testing.assert_allclose(got, module(x).numpy(), atol=1e-5)


def test_complex_arithmetic(tmp_path: Path) -> None:
    module = Arithmetic()
    export(
        module,
        tmp_path / "p",
        example_inputs=(torch.randn(2, 6, 8),),
        dims=DIMS,
        lengths=(1, 2, 7),
        measure=False,
    )
    x = torch.randn(3, 11, 8)
    with load(tmp_path / "p") as session:
        got = session.run({"x": x.numpy()})
    for name, want in module(x).items():
        np.testing.assert_allclose(got[name], want.numpy(), rtol=1e-4, atol=1e-4, err_msg=name)


def test_what_has_no_rule_is_named(tmp_path: Path) -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(torch.complex(x, x).tanh()).flatten(2).cumsum(1)

    with pytest.raises(CaptureError, match=r"got aten\.tanh"):
        export(Unknown(), tmp_path / "p", example_inputs=(torch.randn(2, 6, 8),), dims=DIMS)


def test_complex_inputs_and_results_are_refused(tmp_path: Path) -> None:
    class Through(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(1) if x.is_complex() else torch.complex(x, x).cumsum(1)

    x = torch.randn(2, 6, 8)
    with pytest.raises(CaptureError, match="`x` must be real"):
        export(Through(), tmp_path / "p", example_inputs=(torch.complex(x, x),), dims=DIMS)
    with pytest.raises(CaptureError, match="must return real tensors"):
        export(Through(), tmp_path / "p", example_inputs=(x,), dims=DIMS)
