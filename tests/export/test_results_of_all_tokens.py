"""Modules that return no row for each token: what is said of them, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from causal_attn.errors import CheckError
from causal_attn.export import export
from causal_attn.package.certificate import Certificate, Verdict
from causal_attn.runtime import load
from causal_attn.verify import verify

LENGTHS = (1, 2, 7, 13)


class Picked(nn.Module):
    """Causal attention, or open, of which `pick` leaves no token axis."""

    def __init__(self, pick: Callable[[Tensor], Tensor], *, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head, self.pick = nn.Linear(8, 24), nn.Linear(8, 5), pick
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        head: Tensor = self.head(self.pick(x + y.transpose(1, 2).flatten(2)))
        return head


def write(module: nn.Module, path: Path) -> Certificate:
    x, dims = torch.randn(2, 5, 8), {"x": ("batch", "tokens", None)}
    package = export(module, path, example_inputs=(x,), dims=dims, lengths=LENGTHS, measure=False)
    certificate = package.variants[0].certificate
    assert certificate is not None
    return certificate


def detail(certificate: Certificate, name: str) -> str:
    return next(check.detail for check in certificate.checks if check.name == name)


PICKS: dict[str, Callable[[Tensor], Tensor]] = {
    "the last": lambda x: x[:, -1],
    "a list of the last": lambda x: x[:, [-1]],
    "the mean": lambda x: x.mean(1),
}


@pytest.mark.parametrize("name", PICKS)
def test_results_of_all_tokens(tmp_path: Path, name: str) -> None:
    module = Picked(PICKS[name])
    certificate = write(module, tmp_path / "p")
    assert certificate.verdict is Verdict.OF_ALL_TOKENS
    assert certificate.passed
    proof = detail(certificate, "influence proof")
    assert "nothing is claimed of rows" in proof
    assert proof.endswith("are causal")
    assert "not causal" not in proof
    x = torch.randn(3, 11, 8)
    with load(tmp_path / "p") as session:
        got = session(x.numpy())[0]
    np.testing.assert_allclose(got, module(x).detach().numpy(), atol=1e-5)
    report = verify(tmp_path / "p", lengths=(1, 2, 9))
    assert report.exit_code == 0
    assert report.variants[0].certificate.verdict is Verdict.OF_ALL_TOKENS


def test_rows_before_it_that_are_not_causal_are_said(tmp_path: Path) -> None:
    certificate = write(Picked(lambda x: x[:, -1], causal=False), tmp_path / "p")
    assert certificate.verdict is Verdict.OF_ALL_TOKENS
    assert "are not causal: position 1 reaches position 0" in detail(
        certificate, "influence proof"
    )


def test_a_token_that_is_read_alone_is_refused(tmp_path: Path) -> None:
    class Alone(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, -1] * 2

    with pytest.raises(CheckError, match=r"those that change a result are \[12\]"):
        write(Alone(), tmp_path / "p")


def test_sequences_that_mix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="batch is independent"):
        write(Picked(lambda x: (x - x.mean((0, 1)))[:, -1]), tmp_path / "p")


def test_a_model_of_others_is_told_in_words(tmp_path: Path) -> None:
    write(Picked(lambda x: x[:, -1]), tmp_path / "p")
    model = onnx.load(next((tmp_path / "p").rglob("*.onnx")))
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "theirs.onnx")
    report = verify(tmp_path / "theirs.onnx", lengths=(1, 2, 9), tokens_axis={"x": 1})
    assert report.exit_code == 0
    assert report.variants[0].certificate.verdict is Verdict.OF_ALL_TOKENS
