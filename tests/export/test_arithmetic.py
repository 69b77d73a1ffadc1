"""Modules in float64 and in randomly rounded arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from causal_attn.attention.operator import attend
from causal_attn.export.arithmetic import InFloat64, RoundedAtRandom, round_at_random


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_is_to_values_of_the_dtype_and_right_on_average(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.full((100_000,), 1 / 3, dtype=torch.float64)
    drawn = round_at_random(values, dtype, generator)
    assert torch.equal(drawn.to(dtype).double(), drawn)
    assert len(drawn.unique()) == 2
    assert abs(float(drawn.mean()) - 1 / 3) < 0.01 * torch.finfo(dtype).eps


def test_what_is_exact_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([0.0, 1.0, -2.0, 1000.0, torch.inf, torch.nan], dtype=torch.float64)
    drawn = round_at_random(values, torch.float32, generator)
    assert torch.equal(drawn.nan_to_num(7), values.nan_to_num(7))
    lowest = torch.tensor([torch.finfo(torch.float64).min], dtype=torch.float64)
    assert float(round_at_random(lowest, torch.float32, generator)) == torch.finfo().min


def softmax(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def op(x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = attend(x, x, x)[0]
    return output


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y[:, :, 0] += x[:, :, 0] / 3
    return y.transpose(1, 2).contiguous()


@pytest.mark.parametrize("function", [softmax, op, in_place])
def test_a_function_is_off_by_rounding_and_by_no_more(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = 5 * torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(0)).double()
    given = x.clone()
    with InFloat64():
        exact = function(x)
    samples = []
    for seed in (0, 1, 0):
        with RoundedAtRandom(torch.float32, seed):
            samples.append(function(x))
    assert torch.equal(x, given)
    assert torch.equal(samples[0], samples[2])
    assert not torch.equal(samples[0], samples[1])
    plain = (function(x.float()).double() - exact).abs().max()
    off = (samples[0] - exact).abs().max()
    assert plain / 5 < off < 5 * plain
    assert torch.get_default_dtype() is torch.float32


def test_a_module_keeps_its_weights_and_says_what_its_float64_copy_says() -> None:
    torch.manual_seed(0)
    # The table has more values than are drawn for one tensor, and is turned around.
    table = nn.Embedding(70_000, 16)
    module = nn.Sequential(table, nn.LayerNorm(16), nn.Linear(16, 16))
    ids = torch.tensor([[3, 1, 69_999]])

    def run(embedding: nn.Embedding, rest: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = rest(embedding(ids)) @ embedding.weight.T
            return result

    with InFloat64():
        found = run(table, module[1:])
    copy = nn.Sequential(*module).double()
    with InFloat64():
        wanted = run(copy[0], copy[1:])  # type: ignore[arg-type]
    assert found.dtype is torch.float64
    assert torch.equal(found, wanted)


def test_a_large_weight_is_rounded_as_a_small_one_is() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 64, generator=generator)
    weight = torch.randn(20_000, 64, generator=generator)
    assert weight.numel() > 1_048_573
    exact = x.double() @ weight.double().T
    with RoundedAtRandom(torch.float32, 0):
        whole = x.double() @ weight.T
    with RoundedAtRandom(torch.float32, 0):
        part = x.double() @ weight[:100].T
    typical, of_part = (
        (run - exact[:, : run.shape[1]]).square().mean().sqrt() for run in (whole, part)
    )
    assert of_part / 1.5 < typical < of_part * 1.5


def test_a_count_that_is_compared_with_one_stays_a_count() -> None:
    x = torch.tensor([0.1, 0.2, 3.3], dtype=torch.float64).repeat(40, 1)
    with RoundedAtRandom(torch.float32, 0):
        count = (x > 1).double().sum(-1, keepdim=True)
        y = torch.where(count < 1, 0.0, x)
    assert float((y - x).abs().max()) < 1e-6
