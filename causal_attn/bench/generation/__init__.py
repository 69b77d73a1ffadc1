"""Tokens a second of a language model: this package, onnxruntime-genai and transformers."""

from __future__ import annotations

from causal_attn.bench.generation.run import GenerationReport, run_generation
from causal_attn.bench.generation.systems import GENERATORS

__all__ = ["GENERATORS", "GenerationReport", "run_generation"]
