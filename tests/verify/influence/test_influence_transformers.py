"""Decoders of transformers, tiny and random, as torch.onnx writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, ones, positions, prove

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def made(kind: str) -> Any:
    t: Any = transformers
    match kind:
        case "llama":
            model = t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2))
        case "mistral":
            config = t.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)
            model = t.MistralForCausalLM(config)
        case "gpt2":
            config = t.GPT2Config(vocab_size=97, n_embd=32, n_head=4, n_layer=2, n_positions=64)
            model = t.GPT2LMHeadModel(config)
        case _:
            model = t.BertForMaskedLM(t.BertConfig(**SIZES))
    model.config.use_cache = False
    return model.eval()


class Masked(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).logits


class Cached(torch.nn.Module):
    """Two layers with a cache of keys and values, in the order of the ecosystem's names."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        *past: torch.Tensor,
    ) -> Any:
        cache = transformers.cache_utils.DynamicCache()
        for layer in range(2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        layers = result.past_key_values.layers
        return result.logits, *(item for layer in layers for item in (layer.keys, layer.values))


def exported(module: torch.nn.Module, inputs: tuple[Any, ...], **options: Any) -> ModelProto:
    program = torch.onnx.export(
        module, inputs, dynamo=True, opset_version=18, verbose=False, **options
    )
    assert program is not None
    return program.model_proto


def masked_proof(kind: str) -> Proof:
    tokens = torch.export.Dim("tokens", min=2, max=60)
    ids = torch.randint(0, 97, (1, 7))
    model = exported(
        Masked(made(kind)),
        (ids, torch.ones_like(ids)),
        dynamic_shapes=({1: tokens}, {1: tokens}),
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
    )
    return prove(
        model,
        Claim(
            tokens={"input_ids": 1},
            total={"attention_mask": 1},
            known={"attention_mask": ones},
            outputs={"logits": 1},
        ),
    )


def test_decoder_whose_scores_cannot_reach_its_mask_is_causal() -> None:
    proof = masked_proof("gpt2")
    # transformers adds the lowest float; norms and weights keep scores far below it.
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.score_bound is not None
    assert proof.score_bound > 1e38
    assert proof.largest_score is not None
    assert proof.largest_score < 1e3
    assert np.array_equal(proof.outputs["logits"], np.tri(33, dtype=bool))


def test_sliding_window_of_two_layers() -> None:
    proof = masked_proof("mistral")
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    # Two layers of four tokens each, both counting the token itself: seven positions.
    reach = np.tri(33, dtype=bool) & ~np.tri(33, k=-7, dtype=bool)
    assert np.array_equal(proof.outputs["logits"], reach)
    assert any("window" in note for note in proof.notes)


def test_masked_language_model_is_not_causal() -> None:
    proof = masked_proof("bert")
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.leak is not None
    assert (proof.leak.query, proof.leak.position) == (0, 1)
    assert proof.leak.path[0] == "input_ids[0, 1]"
    assert any(step.startswith("Softmax") for step in proof.leak.path)


def test_decoder_with_a_cache_is_causal_at_every_past() -> None:
    names = [f"past_key_values.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    presents = [name.replace("past_key_values", "present") for name in names]
    tokens = torch.export.Dim("tokens", min=2, max=60)
    past = torch.export.Dim("past", min=2, max=60)
    model = exported(
        Cached(made("llama")),
        (
            torch.randint(0, 97, (1, 5)),
            torch.ones(1, 8, dtype=torch.int64),
            torch.arange(3, 8)[None],
            *(torch.randn(1, 2, 3, 8) for _ in names),
        ),
        dynamic_shapes=(
            {1: tokens}, {1: torch.export.Dim.AUTO}, {1: tokens}, tuple({2: past} for _ in names),
        ),
        input_names=["input_ids", "attention_mask", "position_ids", *names],
        output_names=["logits", *presents],
    )  # fmt: skip
    proof = prove(
        model,
        Claim(
            tokens={"input_ids": 1, "position_ids": 1},
            past=dict.fromkeys(names, 2),
            total={"attention_mask": 1},
            known={"attention_mask": ones, "position_ids": positions},
            outputs={"logits": 1, **dict.fromkeys(presents, 2)},
            lengths=(1, 2, 5),
            pasts=(0, 3, 8),
        ),
    )
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert len(proof.calls) == 9
    assert np.array_equal(proof.outputs["logits"], np.tri(5, 13, k=8, dtype=bool))
    assert np.array_equal(proof.outputs["present.0.key"], np.eye(13, dtype=bool))
