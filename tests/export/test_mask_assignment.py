"""Ordinary ways to hide the future that torch.onnx does not write, or writes for no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from causal_attn.errors import CheckError
from causal_attn.export import export
from causal_attn.runtime import load


def boolean_index(scores: Tensor, tokens: int) -> Tensor:
    scores[..., torch.ones(tokens, tokens, dtype=torch.bool).triu(1)] = -math.inf
    return scores


def boolean_index_of_a_comparison(scores: Tensor, tokens: int) -> Tensor:
    row = torch.arange(tokens)
    scores[:, row[:, None] < row[None]] = torch.finfo(scores.dtype).min
    return scores


def boolean_index_in_front_of_an_axis(scores: Tensor, tokens: int) -> Tensor:
    last = scores.permute(1, 2, 0).clone()
    last[torch.ones(tokens, tokens, dtype=torch.bool).triu(1)] = -math.inf
    return last.permute(2, 0, 1)


def triangle_indices(scores: Tensor, tokens: int) -> Tensor:
    rows, columns = torch.triu_indices(tokens, tokens, 1)
    scores[..., rows, columns] = -math.inf
    return scores


def triangle_indices_of_a_mask(scores: Tensor, tokens: int) -> Tensor:
    seen = torch.tril_indices(tokens, tokens)
    mask = torch.full((tokens, tokens), -math.inf)
    mask[seen[0], seen[1]] = 0
    return scores + mask


def nonzero_indices(scores: Tensor, tokens: int) -> Tensor:
    rows, columns = torch.ones(tokens, tokens).triu(1).nonzero(as_tuple=True)
    scores[:, rows, columns] = -math.inf
    return scores


def narrow_triangle(scores: Tensor, tokens: int) -> Tensor:
    future = torch.ones(tokens, tokens, dtype=torch.uint8).triu(1)
    return scores.masked_fill(future.bool(), -math.inf)


def stacked_mask(scores: Tensor, tokens: int) -> Tensor:
    new = torch.full((tokens, tokens), -math.inf).triu(1)
    return scores + torch.hstack([torch.zeros(tokens, 0), new])


WAYS = (
    boolean_index,
    boolean_index_of_a_comparison,
    boolean_index_in_front_of_an_axis,
    triangle_indices,
    triangle_indices_of_a_mask,
    nonzero_indices,
    narrow_triangle,
    stacked_mask,
)


class Ways(nn.Module):
    """The same attention, its future hidden in each of `ways`."""

    def __init__(self, ways: tuple[Callable[[Tensor, int], Tensor], ...]) -> None:
        super().__init__()
        self.ways = ways

    def forward(self, x: Tensor) -> Mapping[str, Tensor]:
        def attend(way: Callable[[Tensor, int], Tensor]) -> Tensor:
            return way(x @ x.transpose(1, 2), x.shape[1]).softmax(-1) @ x

        return {way.__name__: attend(way) for way in self.ways}


def test_every_way_to_hide_the_future(tmp_path: Path) -> None:
    module, x = Ways(WAYS), torch.randn(2, 6, 5)
    export(
        module,
        tmp_path / "p",
        example_inputs=(x,),
        dims={"x": ("batch", "tokens", None)},
        lengths=(1, 2, 7, 33),
        measure=False,
    )
    y = torch.randn(3, 11, 5)
    with load(tmp_path / "p") as session:
        got = session.run({"x": y.numpy()})
    want = Ways(WAYS[:1])(y)["boolean_index"].numpy()
    assert set(got) == {way.__name__ for way in WAYS}
    for name, result in got.items():
        np.testing.assert_allclose(result, want, atol=1e-5, err_msg=name)


def test_a_triangle_that_leaves_the_next_token_is_found(tmp_path: Path) -> None:
    def one_too_few(scores: Tensor, tokens: int) -> Tensor:
        rows, columns = torch.triu_indices(tokens, tokens, 2)
        scores[..., rows, columns] = -math.inf
        return scores

    with pytest.raises(CheckError, match="position 1 reaches position 0"):
        export(
            Ways((one_too_few,)),
            tmp_path / "p",
            example_inputs=(torch.randn(2, 6, 5),),
            dims={"x": ("batch", "tokens", None)},
            lengths=(1, 2, 7),
        )


def test_a_finite_number_is_refused_with_what_to_write(tmp_path: Path) -> None:
    def low(scores: Tensor, tokens: int) -> Tensor:
        return scores - 1e10 * (1 - torch.ones(tokens, tokens).tril())

    with pytest.raises(CheckError, match=r"write float\('-inf'\)"):
        export(
            Ways((low,)),
            tmp_path / "p",
            example_inputs=(torch.randn(2, 6, 5),),
            dims={"x": ("batch", "tokens", None)},
            lengths=(1, 2, 7),
        )
