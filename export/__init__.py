"""Export causal attention from torch: capture, choose a form, write ONNX, check, package."""

from __future__ import annotations

from causal_attn.export.api import export
from causal_attn.export.compile.record import CompileReport, GraphReport, compile_report
from causal_attn.export.forms.table import FORMS, Form

__all__ = ["FORMS", "CompileReport", "Form", "GraphReport", "compile_report", "export"]
