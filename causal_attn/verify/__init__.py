"""Checks of an exported graph; torch is never imported here."""

from __future__ import annotations

from causal_attn.verify.certification import write_certificates
from causal_attn.verify.report import Report, VariantReport
from causal_attn.verify.verify import verify

__all__ = ["Report", "VariantReport", "verify", "write_certificates"]
