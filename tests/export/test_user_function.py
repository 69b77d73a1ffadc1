"""Functions as targets: what they close over, methods, partials, compiled ones."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from causal_attn.errors import UsageError
from causal_attn.export import export
from causal_attn.export.user_function import FunctionModule
from causal_attn.runtime import load

LENGTHS = (1, 2, 7)


class Block(nn.Module):
    """Attention of two heads over an input projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)


BLOCK, TABLE = Block(), torch.randn(8, 8)


def reads_globals(x: Tensor) -> Tensor:
    attended: Tensor = BLOCK(x)
    return attended @ TABLE


def closes_over(block: nn.Module, table: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: block(x) @ table


def compiled() -> nn.Module:
    block = Block()
    block.compile(backend="eager")
    return block


TARGETS: dict[str, Callable[[], Any]] = {
    "a closure": lambda: closes_over(Block(), TABLE),
    "globals": lambda: reads_globals,
    "a method": lambda: Block().attend,
    "a partial of a function": lambda: functools.partial(closes_over(Block(), TABLE)),
    "a partial of a module": lambda: functools.partial(Block()),
    "a module that was compiled": compiled,
    "a compiled function": lambda: torch.compile(closes_over(Block(), TABLE), backend="eager"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_functions(tmp_path: Path, name: str) -> None:
    target, x = TARGETS[name](), torch.randn(2, 5, 8)
    export(
        target,
        tmp_path / "p",
        example_inputs=(x,),
        dims={"x": ("batch", "tokens", None)},
        lengths=LENGTHS,
        measure=False,
    )
    with torch.compiler.set_stance("force_eager"):
        want = target(x).detach().numpy()
    with load(tmp_path / "p") as session:
        np.testing.assert_allclose(session(x.numpy())[0], want, atol=1e-5)


def test_torchs_own_attention_with_its_arguments_bound(tmp_path: Path) -> None:
    target = functools.partial(scaled_dot_product_attention, is_causal=True, scale=0.3)
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    export(target, tmp_path / "p", example_inputs=(q, k, v), lengths=LENGTHS, measure=False)
    with load(tmp_path / "p") as session:
        got = session(*(tensor.numpy() for tensor in (q, k, v)))[0]
    np.testing.assert_allclose(got, target(q, k, v).numpy(), atol=1e-6)


def test_a_builtin_without_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the builtin 'softmax'"):
        export(torch.softmax, tmp_path / "p", example_inputs=(torch.randn(3, 3),))


def test_a_copy_computes_with_copies() -> None:
    block = Block()
    wide = FunctionModule(closes_over(block, TABLE))
    copied = copy.deepcopy(wide).double()
    assert copied(torch.randn(1, 3, 8, dtype=torch.float64)).dtype is torch.float64
    assert block.qkv.weight.dtype is torch.float32
    assert TABLE.dtype is torch.float32
