"""Language models of transformers: exported whole, held against the library's own attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from decoder_families import FAMILIES, build

from causal_attn.errors import CaptureError
from causal_attn.export import export
from causal_attn.package.certificate import Verdict
from causal_attn.runtime import load

LENGTHS = (1, 2, 7, 33)

FINITE_MASK = {"bloom", "mpt"}
"""Their own attention adds the lowest float32 where a key is hidden."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_exports(tmp_path: Path, family: str) -> None:
    package = export(build(family), tmp_path / "package", form="decomposed", lengths=LENGTHS)
    certificate = package.variants[0].certificate
    assert certificate is not None
    bounded = {Verdict.CONDITIONAL} if family in FINITE_MASK else set()
    assert certificate.verdict in {Verdict.CAUSAL, *bounded}
    passed = {check.name for check in certificate.checks if check.passed}
    assert {"parity", "decode is equivalent", "padding is invisible"} <= passed


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "llama"
    export(build("llama"), path, form="decomposed", lengths=LENGTHS)
    return path


def test_names_and_dims_are_those_of_the_ecosystem(llama: Path) -> None:
    with load(llama, provider="cpu") as session:
        inputs = {tensor.name: tensor.dims for tensor in session.contract.inputs}
        outputs = {tensor.name: tensor.dims for tensor in session.contract.outputs}
    total = "past_tokens + tokens"
    past = {
        f"past_key_values.{layer}.{part}": ("batch", 2, "past_tokens", 8)
        for layer in range(2)
        for part in ("key", "value")
    }
    assert inputs == {
        "input_ids": ("batch", "tokens"),
        "attention_mask": ("batch", total),
        "position_ids": ("batch", "tokens"),
        **past,
    }
    assert outputs == {
        "logits": ("batch", "tokens", 64),
        **{name.replace("past_key_values", "present"): ("batch", 2, total, 8) for name in past},
    }


def test_it_continues_as_generate_does(llama: Path) -> None:
    model = build("llama")
    prompt = torch.tensor([[3, 17, 42, 9]])
    with torch.no_grad():
        wanted = model.generate(  # type: ignore[operator]
            prompt, do_sample=False, max_new_tokens=12, min_new_tokens=12, pad_token_id=0
        )[0, 4:]
    ids, past = prompt.numpy(), 0
    cache = {
        f"past_key_values.{layer}.{part}": np.zeros((1, 2, 0, 8), np.float32)
        for layer in range(2)
        for part in ("key", "value")
    }
    found = []
    with load(llama, provider="cpu") as session:
        for _ in range(12):
            total = past + ids.shape[1]
            results = session.run(
                {
                    "input_ids": ids,
                    "attention_mask": np.ones((1, total), np.int64),
                    "position_ids": np.arange(past, total)[None],
                    **cache,
                }
            )
            cache = {name: results[name.replace("past_key_values", "present")] for name in cache}
            # As `min_new_tokens` does: the end is not to come yet.
            logits = results["logits"][0, -1].copy()
            logits[2] = -np.inf
            past, ids = total, np.array([[int(logits.argmax())]])
            found.append(int(ids[0, 0]))
    assert found == wanted.tolist()


def test_the_model_is_left_as_it_was() -> None:
    from causal_attn.export.decoder.target import decoder_target

    model = build("llama")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    target = decoder_target(model, dtype=torch.float16)
    with torch.no_grad():
        target.module(**target.arguments(target.examples))
    assert model.training
    assert model.config._attn_implementation != "causal_attn"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_encoder_is_refused() -> None:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    with pytest.raises(CaptureError, match="T5ForConditionalGeneration, which has an encoder"):
        export(transformers.T5ForConditionalGeneration(config), "nowhere")


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"got LlamaModel\. Load it with AutoModelForCausalLM"):
        export(build("llama").get_decoder(), "nowhere")


def test_a_cache_that_is_not_keys_and_values_is_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1
    )
    with pytest.raises(CaptureError, match="got LinearAttentionLayer in layer 0"):
        export(transformers.MambaForCausalLM(config), "nowhere")
