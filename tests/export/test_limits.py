"""A largest and a smallest number of tokens: found, kept in the contract, and refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from causal_attn.errors import CaptureError, InputError
from causal_attn.export import export
from causal_attn.export.dims import Dims, Limits
from causal_attn.runtime import load

END, WIDTH = 20, 8
LENGTHS = (1, 2, 5, 33)


class Module(nn.Module):
    """Something with a limit of its own, `kind`, in front of a running mean."""

    grown: Tensor
    lower: Tensor
    turns: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.table = nn.Parameter(torch.randn(1, END, WIDTH))
        self.register_buffer("grown", torch.randn(1, END, WIDTH))
        self.places = nn.Embedding(END + 2, WIDTH)
        self.register_buffer("lower", torch.ones(1, END, END).tril())
        angles = torch.outer(torch.arange(END), torch.rand(WIDTH // 2))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        if self.kind == "table":
            x = x + self.table[:, :tokens]
        elif self.kind == "embedding":
            x = x + self.places(torch.arange(tokens, device=x.device))
        elif self.kind == "embedding with an offset":
            x = x + self.places(torch.arange(2, tokens + 2, device=x.device))
        elif self.kind == "rotary":
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            x = torch.view_as_real(pairs * self.turns[:tokens]).flatten(2)
        elif self.kind == "grown":
            if tokens > self.grown.shape[1]:
                more = torch.zeros(1, tokens - self.grown.shape[1], WIDTH)
                self.grown = torch.cat([self.grown, more], 1)
            x = x + self.grown[:, :tokens]
        elif self.kind == "assertion":
            assert tokens <= END, "too long"
        elif self.kind == "smallest":
            assert tokens >= 3, "too short"
        elif self.kind == "branch":
            return torch.cumsum(x, 1) if tokens <= END else x
        scores = torch.zeros(1, tokens, tokens)
        if self.kind == "mask":
            scores = scores.masked_fill(self.lower[:, :tokens, :tokens] == 0, -math.inf)
        else:
            scores = scores.masked_fill(torch.ones(tokens, tokens).tril() == 0, -math.inf)
        return torch.softmax(scores, -1) @ x


def exported(kind: str, path: Path, tokens: int = 7, entry: str = "tokens", **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "example_inputs": (torch.randn(2, tokens, WIDTH),),
        "dims": {"x": ("batch", entry, None)},
        "lengths": LENGTHS,
    }
    return export(Module(kind), path, **(arguments | more)).variants[0]


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("table", END),
        ("mask", END),
        ("embedding", END + 2),
        ("embedding with an offset", END),
        ("rotary", END),
        ("assertion", END),
        ("grown", END),
    ],
)
def test_the_end_of_a_target_is_found_and_kept(tmp_path: Path, kind: str, end: int) -> None:
    variant = exported(kind, tmp_path / "p")
    assert variant.contract.bounds == {"tokens": (1, end)}
    assert variant.certificate is not None
    (parity,) = [check for check in variant.certificate.checks if check.name == "parity"]
    assert f"1 to {end} tokens" in parity.detail, "the last row is checked too"
    module = Module(kind).eval()
    with load(tmp_path / "p") as session:
        x = torch.randn(3, end, WIDTH)
        torch.testing.assert_close(torch.from_numpy(session(x.numpy()).output), module(x).detach())
        longer = torch.randn(1, end + 1, WIDTH).numpy()
        with pytest.raises(InputError, match=rf"`x` must have tokens = at most {end}"):
            session(longer)


@pytest.mark.parametrize("kind", ["table", "mask"])
def test_an_example_as_long_as_the_table(tmp_path: Path, kind: str) -> None:
    variant = exported(kind, tmp_path / "p", tokens=END)
    assert variant.contract.bounds == {"tokens": (1, END)}


def test_a_smallest_number_of_tokens(tmp_path: Path) -> None:
    assert exported("smallest", tmp_path / "p").contract.bounds == {"tokens": (3, None)}
    with load(tmp_path / "p") as session, pytest.raises(InputError, match="tokens = at least 3"):
        session(torch.randn(1, 2, WIDTH).numpy())


def test_a_bound_that_the_caller_gives(tmp_path: Path) -> None:
    """Where the code goes another way beyond, only the caller can mean the sizes before."""
    with pytest.raises(CaptureError, match=rf"write dims=.*'batch', 'tokens<={END}', None"):
        exported("branch", tmp_path / "p")
    variant = exported("branch", tmp_path / "p", entry=f"2<=tokens<={END}")
    assert variant.contract.bounds == {"tokens": (2, END)}


@pytest.mark.parametrize("kind", ["table", "embedding with an offset"])
def test_a_bound_beyond_the_target_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(CaptureError, match=rf"tokens<={END}"):
        exported(kind, tmp_path / "p", entry="tokens<=64")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("tokens<=1", "must allow a size of 2 or more"),
        ("9<=tokens<=5", "must allow a size of 2 or more"),
        ("tokens<=5", "must keep to 'tokens<=5', got 7 in axis 1 of `x`"),
        ("tokens<5", "must be an identifier, with bounds"),
    ],
)
def test_bounds_that_cannot_be(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        exported("table", tmp_path / "p", entry=entry)


def by_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled by a number that Python takes of a size, which fixes that size."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    tokens = q.shape[-2]
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(future, -math.inf), -1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    return by_width(q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1))


@pytest.mark.parametrize(("target", "kv_heads"), [(by_width, 4), (grouped, 2)])
def test_axes_that_nobody_named_are_dynamic_as_far_as_they_can_be(
    tmp_path: Path, target: Any, kv_heads: int
) -> None:
    q = torch.randn(2, 4, 7, WIDTH)
    k, v = torch.randn(2, 2, kv_heads, 7, WIDTH)
    contract = export(target, tmp_path / "p", example_inputs=(q, k, v), lengths=LENGTHS)
    dims = contract.variants[0].contract.inputs[0].dims
    assert (dims[0], dims[2], dims[3]) == ("batch", "tokens", WIDTH)


def test_limits_hold_their_sizes() -> None:
    assert [size in Limits(2, 4) for size in (1, 2, 4, 5)] == [False, True, True, False]
    assert 10**9 in Limits()
    _: Dims = {"x": ("batch", "2<=tokens", None)}
