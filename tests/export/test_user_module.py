"""What a user's module takes and returns besides tensors: flags, factors, nested results."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from causal_attn.errors import InputError, UsageError
from causal_attn.export import export
from causal_attn.export.user_module import named_results
from causal_attn.package.certificate import Verdict
from causal_attn.runtime import load

DIMS = {"x": ("batch", "tokens", None)}
LENGTHS = (1, 2, 5, 13)


@dataclass
class Out:
    hidden: Tensor
    loss: Any = None
    cache: Any = None


class Block(nn.Module):
    """Attention of two heads that returns a dataclass with pairs in it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.qkv = nn.Linear(8, 24)

    def forward(
        self, x: Tensor, factor: float = 1.0, double: bool = False, mode: str = "sum"
    ) -> Out:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        y = y * (2 * factor if double else factor)
        return Out(hidden=x + y if mode == "sum" else y, cache=({"key": k, "value": v},))


def test_a_dataclass_with_a_dict_in_a_tuple(tmp_path: Path) -> None:
    block, x = Block(), torch.randn(2, 7, 8)
    export(block, tmp_path / "p", example_inputs=(x,), dims=DIMS, lengths=LENGTHS, measure=False)
    with load(tmp_path / "p") as session:
        got = session.run({"x": x.numpy()})
    want = block(x)
    assert list(got) == ["hidden", "cache.0.key", "cache.0.value"]
    np.testing.assert_allclose(got["hidden"], want.hidden.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(got["cache.0.value"], want.cache[0]["value"].detach(), atol=1e-6)


def test_flags_are_bound_and_listed(tmp_path: Path) -> None:
    block, x = Block(), torch.randn(2, 7, 8)
    given: dict[str, Any] = {"x": x, "factor": 0.25, "double": True}
    package = export(
        block, tmp_path / "p", example_inputs=given, dims=DIMS, lengths=LENGTHS, measure=False
    )
    contract = package.variants[0].contract
    assert [tensor.name for tensor in contract.inputs] == ["x"]
    assert contract.arguments == {"factor": 0.25, "double": True, "mode": "sum"}
    with load(tmp_path / "p") as session:
        got = session.run({"x": x.numpy()})["hidden"]
    np.testing.assert_allclose(got, block(x, 0.25, True).hidden.detach().numpy(), atol=1e-6)
    assert np.abs(got - block(x).hidden.detach().numpy()).max() > 1e-2


def test_a_leak_behind_a_flag_is_found(tmp_path: Path) -> None:
    """Of the value that was bound: the wrapped module is what is checked, in float64 too."""

    def attend(x: Tensor, causal: bool = True) -> Tensor:
        y: Tensor = scaled_dot_product_attention(x, x, x, is_causal=causal)
        return y

    example: dict[str, Any] = {"x": torch.randn(2, 7, 8), "causal": True}
    package = export(
        attend, tmp_path / "p", example_inputs=example, dims=DIMS, lengths=LENGTHS, measure=False
    )
    assert package.variants[0].certificate is not None
    assert package.variants[0].certificate.verdict is Verdict.CAUSAL
    with pytest.raises(Exception, match="not causal"):
        export(
            attend,
            tmp_path / "q",
            example_inputs=example | {"causal": False},
            dims=DIMS,
            lengths=LENGTHS,
            measure=False,
        )


def test_partial_and_compiled_targets(tmp_path: Path) -> None:
    x = torch.randn(2, 7, 8)
    bound = functools.partial(scaled_dot_product_attention, is_causal=True)

    def attend(x: Tensor) -> Tensor:
        return bound(x, x, x)

    compiled: Any = torch.compile(Block(), backend="eager")
    targets: dict[str, Any] = {"partial": attend, "compiled": compiled}
    for name, target in targets.items():
        export(
            target,
            tmp_path / name,
            example_inputs=(x,),
            dims=DIMS,
            lengths=LENGTHS,
            measure=False,
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_is_refused_with_a_sentence(tmp_path: Path) -> None:
    traced: Any = torch.jit.trace(nn.Linear(8, 8), torch.randn(2, 8))
    with pytest.raises(UsageError, match=r"Export what was given to torch\.jit\.trace"):
        export(traced, tmp_path / "p", example_inputs=(torch.randn(2, 8),))


def test_what_is_no_tensor_in_a_result_is_named() -> None:
    with pytest.raises(InputError, match=r"got set for `hidden.1`"):
        named_results({"hidden": (torch.zeros(1), {1})})
    with pytest.raises(InputError, match="must return tensors, got dict"):
        named_results({"loss": None})
