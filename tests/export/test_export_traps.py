"""Silent faults of the plain tools, each right here or refused with the argument named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_attn import AttentionSpec
from causal_attn.errors import CaptureError, CausalAttnError, CheckError, InputError, SpecError
from causal_attn.export import export
from causal_attn.runtime import load

LENGTHS = (1, 2, 13, 33)
QKV: dict[str, Any] = dict.fromkeys("qkv", ("batch", "heads", "tokens", "features"))


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def qkv(tokens: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, tokens, 8, generator=generator) for _ in range(3))
    return q, k, v


def refused(
    tmp_path: Path,
    target: Callable[..., Any],
    error: type[CausalAttnError],
    message: str,
    **arguments: Any,
) -> None:
    with pytest.raises(error, match=message):
        export(target, tmp_path / "p", lengths=LENGTHS, **arguments)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("shared", ["qk", "kv", "qv"])
def test_01_one_tensor_for_two_inputs(tmp_path: Path, shared: str) -> None:
    inputs = dict(zip("qkv", qkv(), strict=True))
    inputs[shared[1]] = inputs[shared[0]]
    message = f"one tensor for `{shared[0]}` and `{shared[1]}`"
    refused(tmp_path, sdpa, InputError, message, example_inputs=inputs)


def test_01_views_of_one_tensor_are_fine(tmp_path: Path) -> None:
    q = qkv()[0]
    export(sdpa, tmp_path / "p", example_inputs=(q, q.clone(), q[:]), lengths=LENGTHS)


def test_01_an_input_that_nothing_reads(tmp_path: Path) -> None:
    def ignores(q: Tensor, k: Tensor, v: Tensor, extra: Tensor) -> Tensor:
        return sdpa(q, k, v)

    inputs = (*qkv(), torch.ones(3))
    refused(tmp_path, ignores, CaptureError, r"\['extra'\] reach no output", example_inputs=inputs)


def test_02_names_are_those_of_forward_in_any_order(tmp_path: Path) -> None:
    q, k, v = qkv()
    export(sdpa, tmp_path / "p", example_inputs={"v": v, "k": k, "q": q}, lengths=LENGTHS)
    with load(tmp_path / "p") as session:
        assert [tensor.name for tensor in session.contract.inputs] == ["q", "k", "v"]
        (output,) = session(q=q.numpy(), k=k.numpy(), v=v.numpy())
    np.testing.assert_allclose(output, sdpa(q, k, v).numpy(), atol=1e-6)


def _branch_on_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[-2] == 1:
        return F.scaled_dot_product_attention(q, k, v) + 1
    return sdpa(q, k, v)


def test_03_branch_on_one_token(tmp_path: Path) -> None:
    """torch.export takes every dim for > 1 without a guard: only running at 1 shows it."""
    refused(tmp_path, _branch_on_one, CheckError, "tokens=1", example_inputs=qkv())


def _branch_on_length(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v) if q.shape[-2] > 4 else F.scaled_dot_product_attention(q, k, v)


def test_03_branch_on_a_length(tmp_path: Path) -> None:
    message = "`dims` must hold for every size.*q.shape"
    refused(tmp_path, _branch_on_length, CaptureError, message, example_inputs=qkv())


def _branch_on_equal_lengths(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[-2] == k.shape[-2]:
        return sdpa(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)


def test_03_branch_on_equal_lengths(tmp_path: Path) -> None:
    refused(
        tmp_path,
        _branch_on_equal_lengths,
        CheckError,
        "at tokens=2, kv=2",
        example_inputs=(qkv()[0], qkv(11)[1], qkv(11)[2]),
        dims={"q": {2: "tokens"}, "k": {2: "kv"}, "v": {2: "kv"}},
    )


class _MaskBuffer(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(9, 9).tril().bool())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


def _mask_of_ints(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    size = int(q.shape[-2])
    mask = torch.tensor([[key <= query for key in range(size)] for query in range(size)])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("target", [_MaskBuffer(), _mask_of_ints], ids=["buffer", "ints"])
def test_04_mask_of_the_traced_length(tmp_path: Path, target: Any) -> None:
    message = "`tokens` must stay dynamic, but the code fixes it"
    refused(tmp_path, target, CaptureError, message, example_inputs=qkv())


@pytest.mark.parametrize("opset", [18, 23, 25])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_05_row_without_a_key_is_zeros(tmp_path: Path, opset: int, kind: str) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        seen = causal & mask
        if kind == "float":
            added = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    q, k, v = qkv()
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    export(
        masked,
        tmp_path / "p",
        example_inputs=(q, k, v, mask),
        dims=QKV | {"mask": ("batch", None, "tokens", "tokens")},
        opset=opset,
        lengths=LENGTHS,
    )
    mask[:, :, 4] = False
    with load(tmp_path / "p") as session:
        (output,) = session(q.numpy(), k.numpy(), v.numpy(), mask.numpy())
    assert (output[:, :, 4] == 0).all()
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output, masked(q, k, v, mask).numpy(), atol=1e-6)


def test_06_integer_mask(tmp_path: Path) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)

    refused(
        tmp_path,
        masked,
        InputError,
        "attn_mask.*bool or float",
        example_inputs=(*qkv(), torch.ones(9, 9, dtype=torch.int64)),
        dims=QKV | {"attn_mask": ("tokens", "tokens")},
    )


@pytest.mark.parametrize("opset", [18, 25])
def test_07_mask_with_one_key_is_broadcast(tmp_path: Path, opset: int) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return first + F.scaled_dot_product_attention(q, k[:, :, :1], v[:, :, :1], attn_mask=rows)

    q, k, v = qkv()
    export(
        masked,
        tmp_path / "p",
        example_inputs=(q, k, v, torch.ones(2, 1, 9, 1, dtype=torch.bool)),
        dims=QKV | {"rows": ("batch", None, "tokens", None)},
        opset=opset,
        lengths=LENGTHS,
    )


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_08_scale_that_is_not_positive(tmp_path: Path, scale: float) -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    refused(tmp_path, scaled, InputError, "`scale` of scaled_dot", example_inputs=qkv())
    with pytest.raises(SpecError, match="`scale` must be a finite number > 0"):
        AttentionSpec(scale=scale)


def test_09_float64_attention_of_a_module_is_exact(tmp_path: Path) -> None:
    q, k, v = (tensor.double() for tensor in qkv())
    package = export(sdpa, tmp_path / "p", example_inputs=(q, k, v), lengths=LENGTHS)
    certificate = package.variants[0].certificate
    assert certificate is not None
    (parity,) = [check for check in certificate.checks if check.name == "parity"]
    assert parity.figures["output"]["max_abs"] < 1e-14


def test_09_float64_that_onnx_cannot_keep_is_refused(tmp_path: Path) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # In 32 bits 0.1 is another number by 1.5e-9, far more than rounding makes of it.
            self.norm = nn.LayerNorm(8, eps=0.1, dtype=torch.float64)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(self.norm(q) * 100, k, v)

    inputs = tuple(tensor.double() for tensor in qkv())
    message = "`dtype` float64 holds only where"
    refused(
        tmp_path, Normed(), CheckError, message, example_inputs=inputs,
        dims=dict.fromkeys("qkv", ("batch", "heads", "tokens", None)),
    )  # fmt: skip


def test_10_sdpa_has_no_finite_mask(tmp_path: Path) -> None:
    """Scores 1e30 apart: an added lowest float would still do, -1e4 would not, -inf always."""
    export(sdpa, tmp_path / "p", example_inputs=qkv(), lengths=LENGTHS)
    import onnx

    model = onnx.load(tmp_path / "p" / "sdpa" / "cpu" / "model.onnx")
    constants = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    floats = [value for value in constants if value.dtype.kind == "f"]
    assert any(np.isneginf(value).any() for value in floats)
    assert not any((np.isfinite(value) & (value < -1e3)).any() for value in floats)


def test_10_finite_mask_by_hand_is_caught(tmp_path: Path) -> None:
    def leaks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2)
        future = torch.ones(q.shape[-2], q.shape[-2]).triu(1)
        return torch.softmax(scores - 1e4 * future, dim=-1) @ v

    refused(tmp_path, leaks, CheckError, "it sees the future", example_inputs=qkv())


def test_11_half_precision_scores_are_float32(tmp_path: Path) -> None:
    q, k, v = (tensor.half() for tensor in qkv())
    export(sdpa, tmp_path / "p", example_inputs=(q, k, v), lengths=LENGTHS)
    big = 40 * torch.ones(2, 3, 9, 8, dtype=torch.float16)
    with load(tmp_path / "p") as session:
        (output,) = session((q * 40).numpy(), (40 * big).numpy(), v.numpy())
    assert np.isfinite(output).all()


def test_15_buffer_that_is_written(tmp_path: Path) -> None:
    class Cache(nn.Module):
        sum: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(()))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.sum += k.sum()
            return sdpa(q, k, v) + self.sum

    cache = Cache()
    message = r"must not change its buffers or inputs, got writes to \['sum'\]"
    refused(tmp_path, cache, CaptureError, message, example_inputs=qkv())
    assert cache.sum == 0, "the caller's module keeps its state"


def test_20_nan_never_passes(tmp_path: Path) -> None:
    def nan_at_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # log of a negative number below the traced lengths: NaN at 1 token only.
        length = torch.full((), q.shape[-2], dtype=torch.float32)
        return sdpa(q, k, v) + 0 * torch.log(length - 1.5)

    # The oracle has the NaN too, so parity agrees; the module itself is at fault and stays so.
    def hides(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[-2] == 1:
            return sdpa(q, k, v)
        return nan_at_zero(q, k, v)

    refused(tmp_path, hides, CheckError, "NaN where the oracle has none", example_inputs=qkv())


def test_a_module_that_sees_the_future(tmp_path: Path) -> None:
    def open_(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    message = "future is invisible: `output` at position 0 changes"
    refused(tmp_path, open_, CheckError, message, example_inputs=qkv())


def test_a_module_that_ignores_the_past(tmp_path: Path) -> None:
    def diagonal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q * k * v

    message = "past matters: changing token 3 changes nothing at position 4"
    refused(tmp_path, diagonal, CheckError, message, example_inputs=qkv())
