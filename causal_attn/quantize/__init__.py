"""Packages with weights of a few bits: ONNX Runtime's quantizer, and every check after it."""

from __future__ import annotations

from causal_attn.quantize.package import quantize

__all__ = ["quantize"]
