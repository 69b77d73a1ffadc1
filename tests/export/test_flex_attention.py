"""``flex_attention`` is exported by its own definition, whatever its two functions say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
)

from causal_attn.errors import CheckError
from causal_attn.export import export
from causal_attn.export.capture.flex_attention import flex_as_masks, flex_by_definition
from causal_attn.runtime import load

Mod = Callable[..., Tensor]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
KINDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3]])
TABLE = torch.randn(4, 11, 11, generator=torch.Generator().manual_seed(0))


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q - k < 4


def prefix(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k < 3) | (q >= k)


def same_kind(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return KINDS[b][q] == KINDS[b, k]


def later_heads_see_nothing_early(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & ((h < 2) | (q > 4))


def unchanged(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - SLOPES[h] * (q - k)


def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 2 * torch.tanh(score / 2)


def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + TABLE[h][q][k] * TABLE[0, q, 1]


def only_the_past(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where(q >= k, score, -float("inf"))


def block_mask(mod: Mod, q: Tensor) -> BlockMask:
    return create_block_mask(mod, None, None, q.shape[2], q.shape[2], device="cpu")


def qkv(tokens: int, kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    heads = (4, kv_heads, kv_heads)
    q, k, v = (torch.randn(2, h, tokens, 8, generator=generator) for h in heads)
    return q, k, v


@pytest.mark.parametrize("score", [None, alibi, capped, biased, only_the_past])
@pytest.mark.parametrize("mask", [noop_mask, causal, same_kind, later_heads_see_nothing_early])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_what_is_traced_is_its_definition(score: Mod | None, mask: Mod, kv_heads: int) -> None:
    q, k, v = qkv(11, kv_heads)

    def both() -> tuple[Tensor, Tensor]:
        made = create_block_mask(mask, 2, 4, 11, 11, device="cpu")
        ask = AuxRequest(lse=True)
        alone = flex_attention(q, k, v, score, made, enable_gqa=True)
        output, aux = flex_attention(q, k, v, score, made, enable_gqa=True, return_aux=ask)
        assert aux.lse is not None
        torch.testing.assert_close(alone, output)
        return alone, aux.lse

    with torch.no_grad(), flex_by_definition():
        want = both()
    with torch.no_grad(), flex_as_masks():
        got = both()
    torch.testing.assert_close(got, want)


def test_a_mask_of_positions_has_the_shape_that_was_asked_for() -> None:
    want = create_mask(causal, 2, 4, 5, 7, device="cpu")
    with flex_as_masks():
        got = create_mask(causal, 2, 4, 5, 7, device="cpu")
    assert torch.equal(got, want)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As attention-gym has it: compiled, its block masks kept by their lengths."""
    kept = functools.lru_cache(block_mask_of)
    compiled: Any = torch.compile(flex_attention, backend="eager")
    made = compiled(q, k, v, block_mask=kept(causal, q.shape[2]), enable_gqa=True)
    return made.transpose(1, 2).flatten(2)  # type: ignore[no-any-return]


def block_mask_of(mod: Mod, tokens: int) -> BlockMask:
    return create_block_mask(mod, None, None, tokens, tokens, device="cpu")


def attend_near(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q, k, v, alibi, block_mask(and_masks(causal, window), q))


def exported(function: Callable[..., Tensor], folder: Path, kv_heads: int) -> Any:
    dims = dict.fromkeys("qkv", ("batch", None, "tokens", None))
    return export(
        function, folder / "p", example_inputs=qkv(9, kv_heads), dims=dims, lengths=(1, 2, 7),
        measure=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("function", "kv_heads", "attends"), [(attend, 2, 1), (attend_near, 4, 0)]
)
def test_a_module_with_it_is_exported(
    function: Callable[..., Tensor], kv_heads: int, attends: int, tmp_path: Path
) -> None:
    package = exported(function, tmp_path, kv_heads)
    assert package.variants[0].certificate.verdict == "causal"
    # Whose mask is the causal one is the op, and may be written in any form.
    assert package.variants[0].contract.choice["captured"]["attend"] == attends
    with load(package.root, provider="cpu") as session:
        for tokens in (1, 20, 150):
            inputs = qkv(tokens, kv_heads)
            (got,) = session(*(tensor.numpy() for tensor in inputs))
            with torch.no_grad(), flex_by_definition(), torch.compiler.set_stance("force_eager"):
                want = function(*inputs).numpy()
            np.testing.assert_allclose(got, want, atol=2e-6)


def test_a_prefix_that_sees_itself_is_refused(tmp_path: Path) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, block_mask=block_mask(prefix, q))

    with pytest.raises(CheckError, match=r"not causal: position 1 .* 3 first tokens, a prefix"):
        exported(attend, tmp_path, 4)
