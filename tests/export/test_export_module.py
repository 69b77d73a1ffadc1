"""A user's own module: what is bound, what stays as it was, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_attn.errors import CaptureError, InputError, UsageError
from causal_attn.export import export
from causal_attn.export.capture.captured import Captured
from causal_attn.export.target import user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.runtime import load

LENGTHS = (1, 2, 13, 33)
DIMS = {"x": ("batch", "tokens", None)}


class Block(nn.Module):
    """A transformer block of width 16 with two heads."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, tokens, width)))
        result: Tensor = x + self.mlp(x)
        return result


class Decoder(nn.Module):
    """Two blocks between an embedding and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x)}


def example(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_block(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(0)
    block = Block(dropout=0.5)
    package = export(
        block, tmp_path / "p", example_inputs=(example(2, 9, 16),), dims=DIMS, dtype=dtype,
        lengths=LENGTHS,
    )  # fmt: skip
    assert package.name == "Block"
    assert block.training, "the caller's module is in the mode it was in"
    assert next(block.parameters()).dtype is torch.float32, "and has the dtype it had"
    precision = getattr(torch, dtype)
    x = example(3, 21, 16).to(precision)
    with load(tmp_path / "p") as session:
        (output,) = session(x.numpy())
    with torch.no_grad():
        want = block.to(precision).eval()(x)
    np.testing.assert_allclose(output, want.numpy(), atol=1e-5 if dtype == "float32" else 2e-2)


def test_a_decoder_of_ids(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    package = export(Decoder(), tmp_path / "p", example_inputs={"input_ids": ids}, lengths=LENGTHS)
    contract = package.variants[0].contract
    assert contract.inputs[0].dims == ("batch", "tokens")
    assert contract.outputs[0].name == "logits"
    assert contract.outputs[0].dims == ("batch", "tokens", 50)


def test_multihead_attention_module(tmp_path: Path) -> None:
    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            output: Tensor = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
            return output

    torch.manual_seed(0)
    export(Self(), tmp_path / "p", example_inputs=(example(2, 9, 16),), dims=DIMS, lengths=LENGTHS)


def test_examples_of_size_one_stay_dynamic(tmp_path: Path) -> None:
    torch.manual_seed(0)
    export(
        Block(), tmp_path / "p", example_inputs=(example(1, 1, 16),), dims=DIMS, lengths=LENGTHS
    )
    with load(tmp_path / "p") as session:
        assert session(example(4, 17, 16).numpy())[0].shape == (4, 17, 16)


def test_names_of_outputs(tmp_path: Path) -> None:
    class Pair(NamedTuple):
        left: Tensor
        right: Tensor

    def pair(x: Tensor) -> Pair:
        sums = torch.cumsum(x, dim=1)
        return Pair(sums, 2 * sums)

    def bare(x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = pair(x)
        return left, right

    for target, want in ((pair, ["left", "right"]), (bare, ["output_0", "output_1"])):
        package = export(
            target, tmp_path / "p", example_inputs=(example(2, 9, 16),), dims=DIMS, lengths=LENGTHS
        )
        assert [tensor.name for tensor in package.variants[0].contract.outputs] == want


def test_a_result_that_is_none_is_no_output(tmp_path: Path) -> None:
    def logits_and_loss(x: Tensor, targets: None = None) -> tuple[None, Tensor, None]:
        return None, torch.cumsum(x, dim=1), targets

    def named(x: Tensor) -> dict[str, Tensor | None]:
        return {"loss": None, "logits": torch.cumsum(x, dim=1)}

    for target, want in ((logits_and_loss, "output_1"), (named, "logits")):
        package = export(
            target, tmp_path / "p", example_inputs=(example(2, 9, 16),), dims=DIMS, lengths=LENGTHS
        )
        assert [tensor.name for tensor in package.variants[0].contract.outputs] == [want]


def one(x: Tensor) -> Tensor:
    return torch.cumsum(x, dim=1)


X = example(2, 9, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`example_inputs` must hold a tensor for every input"),
        ({"example_inputs": (X, X + 1)}, "`example_inputs` must fit forward"),
        ({"example_inputs": {"y": X}}, "`example_inputs` must fit forward"),
        ({"example_inputs": (3,)}, r"must hold a tensor for the tokens, got \['x'\] alone"),
        ({"example_inputs": (object(),)}, "must be tensors, numbers, words or None, got object"),
        ({"example_inputs": (X,)}, "`dims` must call one axis of an input 'tokens'"),
        ({"example_inputs": (X,), "dims": {"x": ("batch", "tokens")}}, "one entry for each of 3"),
        ({"example_inputs": (X,), "dims": {"x": {7: "tokens"}}}, "must name axes 0 to 2"),
        ({"example_inputs": (X,), "dims": {"x": {1: "a b"}}}, "must be an identifier"),
        ({"example_inputs": (X,), "dims": {"y": {1: "tokens"}}}, r"must name inputs of \['x'\]"),
        (
            {"example_inputs": (X[0],), "dims": {"x": {0: "batch", 1: "tokens"}}, "dtype": "int8"},
            "`dtype` must be one of",
        ),
    ],
)
def test_wrong_examples(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        export(one, tmp_path / "p", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_nothing_of_the_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`target` must be causal_attention"):
        export(3, tmp_path / "p", example_inputs=(X,))  # type: ignore[arg-type]


def test_outputs_that_are_no_tensors(tmp_path: Path) -> None:
    def number(x: Tensor) -> tuple[Tensor, int]:
        return x, 3

    with pytest.raises(InputError, match="must return tensors, got int for `output_1`"):
        export(number, tmp_path / "p", example_inputs=(X,), dims=DIMS)


def test_an_operator_that_onnx_cannot_say_names_the_log(tmp_path: Path) -> None:
    def odd(x: Tensor) -> Tensor:
        return torch.cumsum(torch.special.bessel_j0(x), dim=1)

    with pytest.raises(CaptureError, match=r"bessel_j0.*report is in (\S+)\.$") as caught:
        export(odd, tmp_path / "p", example_inputs=(X,), dims=DIMS)
    log = Path(str(caught.value).rpartition(" is in ")[2].rstrip("."))
    assert "bessel_j0" in log.read_text()
    log.unlink()
    assert list(tmp_path.iterdir()) == []


class Gated(nn.Module):
    """Beside the tokens a number for each sequence, and one for all."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor, gain: Tensor) -> Tensor:
        q = q * gates[:, None, None, None] * gain
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_inputs_of_one_axis_and_of_none(tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    tokens = {0: "batch", 2: "tokens"}
    package = export(
        Gated(),
        tmp_path / "package",
        example_inputs=[q, k, v, torch.randn(2), torch.tensor(1.5)],
        dims={"q": tokens, "k": tokens, "v": tokens, "gates": {0: "batch"}},
        lengths=(1, 2, 5),
    )
    certificate = package.variants[0].certificate
    assert certificate is not None
    assert {"large inputs", "batch is independent"} <= {c.name for c in certificate.checks}


@pytest.mark.parametrize("elsewhere", ["module", "example"])
def test_tensors_on_another_device_are_refused_before_anything_runs(
    elsewhere: str, tmp_path: Path
) -> None:
    module = torch.nn.Linear(8, 8, device="meta" if elsewhere == "module" else "cpu")
    x = torch.empty(1, 5, 8, device="meta" if elsewhere == "example" else "cpu")
    found = {"module": "`target` .* 'weight' on meta", "example": "`example_inputs` .* on meta"}
    with pytest.raises(InputError, match=found[elsewhere]):
        export(
            module,
            tmp_path / "p",
            example_inputs=(x,),
            dims={"input": {1: "tokens"}},
            lengths=(2,),
        )


class Forwarding(nn.Module):
    """Options of its own besides the tensors, and room for any others, as libraries have it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor, scale: float = 1.0, *rest: Tensor, **options: bool) -> Tensor:
        q, k, v = (self.qkv(x) * scale).chunk(3, dim=-1)
        if options.get("reversed"):
            q, k = k, q
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_room_for_other_arguments_is_left_empty(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Forwarding()
    package = export(
        module, tmp_path / "p", example_inputs=(example(2, 9, 16),), dims=DIMS, lengths=LENGTHS
    )
    assert package.variants[0].contract.arguments == {"scale": 1.0}
    x = example(3, 21, 16)
    with load(package.root) as session, torch.no_grad():
        np.testing.assert_allclose(session(x.numpy())[0], module(x).numpy(), atol=1e-5)


class Remembering(nn.Module):
    """Keeps the mask of the last call, in attributes of all kinds, for calls of that length."""

    table: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.masks: dict[int, Tensor] = {}
        self.lengths: list[int] = []
        self.register_buffer("table", None)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        tokens = x.shape[1]
        if not torch.compiler.is_exporting():
            mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            self.masks[tokens], self.table, self.last = mask, mask, tokens
            self.lengths.append(tokens)
        if self.table is not None and self.table.shape[0] == tokens:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.table)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_what_the_first_run_leaves_is_no_constant_of_the_trace(tmp_path: Path) -> None:
    module = Remembering()
    target = user_target(module, (example(2, 9, 16),), DIMS, dtype=None)
    assert module.table is None
    assert (module.masks, module.lengths) == ({}, [])
    assert not hasattr(module, "last")
    captured = Captured.of(target, torch.float32, ExportLog())
    assert captured.calls == {"attend": 1, "kept": {}}


def test_a_view_that_counts_on_the_layout_of_fused_attention(tmp_path: Path) -> None:
    """torch's own tutorial has it: no copy before the view."""

    class Viewing(Block):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            result: Tensor = self.out(y.transpose(1, 2).view(*x.shape))
            return result

    export(
        Viewing(), tmp_path / "p", example_inputs=(example(2, 9, 16),), dims=DIMS, lengths=LENGTHS
    )


class Turning(nn.Module):
    """Rotary embeddings as a product with a complex table."""

    angles: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(64), 10.0 ** -torch.arange(4))
        self.register_buffer("angles", torch.polar(torch.ones_like(angles), angles))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (self.turned(part) for part in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.angles[: x.shape[-2]]).flatten(-2).type_as(x)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_complex_table_keeps_its_imaginary_part(tmp_path: Path, dtype: str) -> None:
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    package = export(
        Turning(), tmp_path / "p", example_inputs=(q, k, v), dtype=dtype, lengths=LENGTHS
    )
    inputs = [tensor.to(getattr(torch, dtype)) for tensor in (q, k, v)]
    with load(package.root, provider="cpu") as session:
        (result,) = session(*(tensor.numpy() for tensor in inputs))
    right = Turning()(*inputs)
    np.testing.assert_allclose(result, right.numpy(), atol=1e-5 if dtype == "float32" else 2e-2)


def test_tokens_first_in_half_precision(tmp_path: Path) -> None:
    """ONNX Runtime 1.32.0 by itself ends the process as it opens this graph."""

    class TokensFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
            result: Tensor = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
            return result

    dims = {"x": ("tokens", "batch", None)}
    package = export(
        TokensFirst(),
        tmp_path / "p",
        example_inputs=(example(9, 2, 16),),
        dims=dims,
        dtype="float16",
        lengths=LENGTHS,
    )
    with load(package.root, provider="cpu") as session:
        assert session(example(5, 3, 16).half().numpy())[0].shape == (5, 3, 16)
