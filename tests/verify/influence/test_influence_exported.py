"""Graphs that torch exports, decided at lengths they were not traced at."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, prove

pytestmark = pytest.mark.filterwarnings("ignore")


def exported(module: Any, inputs: tuple[Any, ...], axis: int, opset: int) -> ModelProto:
    tokens = torch.export.Dim("tokens", min=2, max=512)
    names = ["q", "k", "v"][: len(inputs)] if len(inputs) > 1 else ["input_ids"]
    program = torch.onnx.export(
        module.eval(), inputs, dynamo=True, opset_version=opset, verbose=False,
        dynamic_shapes=tuple({axis: tokens} for _ in inputs), input_names=names,
    )  # fmt: skip
    assert program is not None
    return program.model_proto


def qkv(dtype: Any = None) -> tuple[Any, ...]:
    return tuple(torch.randn(1, 4, 6, 8, dtype=dtype) for _ in range(3))


class Fused(torch.nn.Module):
    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Written(torch.nn.Module):
    def __init__(self, fill: float = -math.inf, softmax: str = "fused") -> None:
        super().__init__()
        self.fill, self.softmax = fill, softmax

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        tokens = q.shape[-2]
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, self.fill)
        if self.softmax == "fused":
            weights = scores.softmax(-1)
        else:
            raised = (scores - scores.amax(-1, keepdim=True)).exp()
            weights = raised / raised.sum(-1, keepdim=True)
        return weights @ v, weights


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(16) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.register_buffer("bias", torch.tril(torch.ones(512, 512, dtype=torch.bool)))

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, tokens, 3, 4, 4).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        scores = q @ k.transpose(-1, -2) / 2.0
        seen = self.get_buffer("bias")[:tokens, :tokens]
        scores = scores.masked_fill(~seen, -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(mixed)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(97, 16), torch.nn.Embedding(512, 16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(16, 97)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def attention_proof(model: ModelProto, **options: Any) -> Any:
    outputs = {output.name: 2 for output in model.graph.output}
    return prove(model, Claim(tokens={"q": 2, "k": 2, "v": 2}, outputs=outputs, **options))


@pytest.mark.parametrize("opset", [18, 23, 24])
def test_fused_attention_is_causal_up_to_half_the_float_range(opset: int) -> None:
    proof = attention_proof(exported(Fused(), qkv(), 2, opset))
    assert proof.verdict is Verdict.CONDITIONAL, str(proof)
    assert proof.score_bound == pytest.approx(1.7e38, rel=0.01)
    assert all(np.array_equal(m, np.tri(33, dtype=bool)) for m in proof.outputs.values())


def test_half_precision_has_the_small_bound() -> None:
    proof = attention_proof(exported(Fused(), qkv(torch.float16), 2, 23))
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.score_bound == pytest.approx(65504 / 2, rel=0.01)


def test_attention_without_a_mask_leaks() -> None:
    proof = attention_proof(exported(Fused(causal=False), qkv(), 2, 23))
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert any(step.startswith("Attention") for step in proof.leak.path)


def test_written_attention_is_causal() -> None:
    proof = attention_proof(exported(Written(), qkv(), 2, 18))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert len(proof.outputs) == 2


def test_softmax_written_out_with_a_finite_mask_is_conditional() -> None:
    proof = attention_proof(exported(Written(-1e4, "written"), qkv(), 2, 18))
    assert proof.verdict is Verdict.CONDITIONAL, str(proof)
    assert 4000 < proof.score_bound < 10_000


def test_decoder_with_mask_buffers_is_causal() -> None:
    ids = torch.randint(0, 97, (1, 7))
    proof = prove(
        exported(Decoder(), (ids,), 1, 18), Claim(tokens={"input_ids": 1}, lengths=[1, 4, 40])
    )
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(next(iter(proof.outputs.values())), np.tri(40, dtype=bool))
