"""Language models of transformers: exported whole, held against the library's own attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from decoder_families import FAMILIES, build
from sampled import sampled

from causal_attn.errors import CaptureError, CheckError
from causal_attn.export import export
from causal_attn.package.certificate import Verdict
from causal_attn.runtime import load
from causal_attn.runtime.generate import Generator

LENGTHS = (1, 2, 7, 33)
PROMPT = [3, 17, 42, 9]

FINITE_MASK = {"bloom", "mpt"}
"""Their own attention adds the lowest float32 where a key is hidden."""


@pytest.mark.parametrize("family", sampled(FAMILIES, 2, "llama", "gpt_oss"))
def test_a_family_exports(tmp_path: Path, family: str) -> None:
    package = export(build(family), tmp_path / "package", form="decomposed", lengths=LENGTHS)
    certificate = package.variants[0].certificate
    assert certificate is not None
    bounded = {Verdict.CONDITIONAL} if family in FINITE_MASK else set()
    assert certificate.verdict in {Verdict.CAUSAL, *bounded}
    passed = {check.name for check in certificate.checks if check.passed}
    assert {"parity", "decode is equivalent", "padding is invisible"} <= passed
    _generates_alike(tmp_path / "package", family)


def _generates_alike(package: Path, family: str) -> None:
    with torch.no_grad():
        generated = build(family).generate(  # type: ignore[operator]
            torch.tensor([PROMPT]),
            do_sample=False,
            max_new_tokens=16,
            eos_token_id=None,
            pad_token_id=0,
        )
    wanted = generated[0, len(PROMPT) :].tolist()
    with Generator.open(package) as generator:
        for lookup in (0, 4):
            tokens = generator.generate(PROMPT, max_new_tokens=16, ends=(), lookup=lookup)
            assert [token.id for token in tokens] == wanted


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


def test_weights_come_out_where_they_are_asked_for(tmp_path: Path) -> None:
    model = build("llama")
    export(model, tmp_path / "p", form="decomposed", lengths=(1, 2, 7), output_attentions=True)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        wanted = model(input_ids=torch.tensor([PROMPT]), output_attentions=True).attentions
    with load(tmp_path / "p", provider="cpu") as session:
        outputs = {tensor.name: tensor.dims for tensor in session.contract.outputs}
        assert outputs["attentions.1"] == ("batch", 4, "tokens", "past_tokens + tokens")
        feeds = {
            "input_ids": np.array([PROMPT]),
            "attention_mask": np.ones((1, 4), np.int64),
            "position_ids": np.arange(4)[None],
            **{
                tensor.name: np.zeros((1, 2, 0, 8), np.float32)
                for tensor in session.contract.inputs[3:]
            },
        }
        given = session.run(feeds)
    for layer in range(2):
        np.testing.assert_allclose(given[f"attentions.{layer}"], wanted[layer], atol=1e-6)


def test_weights_that_see_the_future_are_refused(tmp_path: Path) -> None:
    # Falcon of transformers 5 leaves its mask out where its weights are asked for.
    with pytest.raises(CheckError, match="not causal"):
        export(build("falcon"), tmp_path / "p", lengths=(1, 2), output_attentions=True)
    assert not (tmp_path / "p").exists()


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
