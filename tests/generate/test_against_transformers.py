"""Scores after each option are those of the logits processors of `transformers`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as library

from causal_attn.runtime.generate.sampling import Sampler, Sampling

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
