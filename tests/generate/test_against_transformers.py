"""Scores after each option are those of the logits processors of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation import logits_process as library

from causal_attn.runtime.generate.defaults import Defaults
from causal_attn.runtime.generate.sampling import Sampler, Sampling, SamplingOptions

SEEN = [3, 5, 5, 11]


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 7},
        {"top_p": 0.83},
        {"min_p": 0.11},
        {"repetition_penalty": 1.4},
        {"repetition_penalty": 1.3, "top_k": 20, "top_p": 0.7, "min_p": 0.05},
    ],
)
@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_scores_are_those_of_the_library(options: dict[str, Any], temperature: float) -> None:
    processors = library.LogitsProcessorList()
    if penalty := options.get("repetition_penalty"):
        processors.append(library.RepetitionPenaltyLogitsProcessor(penalty))
    processors.append(library.TemperatureLogitsWarper(temperature))
    if top_k := options.get("top_k"):
        processors.append(library.TopKLogitsWarper(top_k))
    if top_p := options.get("top_p"):
        processors.append(library.TopPLogitsWarper(top_p))
    if min_p := options.get("min_p"):
        processors.append(library.MinPLogitsWarper(min_p))
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(0, 3, 97).astype(np.float32)
        seen: Any = torch.tensor([SEEN])
        given: Any = torch.from_numpy(logits)[None]
        wanted = processors(seen, given)[0].softmax(-1)
        scores = Sampler(Sampling(temperature=temperature, **options), SEEN).scores(logits)
        shares = np.exp(scores - scores.max())
        np.testing.assert_allclose(shares / shares.sum(), wanted.numpy(), atol=2e-6)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=97)).eval()


@pytest.mark.parametrize("call", [{}, {"top_k": None}, {"top_k": 0}, {"top_k": 9}], ids=str)
@pytest.mark.parametrize("file", [{}, {"top_k": None}, {"top_k": 0}, {"top_k": 7}], ids=str)
def test_what_nobody_says_is_what_the_library_takes(
    tmp_path: Path, model: Any, file: dict[str, Any], call: SamplingOptions
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **file}))
    model.generation_config = GenerationConfig.from_pretrained(tmp_path)
    wanted = model.generate(
        torch.tensor([SEEN]),
        attention_mask=torch.ones(1, len(SEEN)),
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **call,
    )
    sampling = Defaults.read(tmp_path).sampling.with_options(call)
    scores = Sampler(sampling, SEEN).scores(wanted.logits[0][0].numpy())
    assert np.isfinite(scores).tolist() == torch.isfinite(wanted.scores[0][0]).tolist()
