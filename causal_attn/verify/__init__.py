"""Checks of an exported graph; torch is never imported here.

The names below need onnx and are imported when they are first used, so that the checks that run on
a session alone (`causal_attn.verify.checks.all_checks`) work where onnx is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from causal_attn.verify.certification import write_certificates
    from causal_attn.verify.page import write_page
    from causal_attn.verify.report import Report, VariantReport
    from causal_attn.verify.verification import verify

__all__ = ["Report", "VariantReport", "verify", "write_certificates", "write_page"]

_HOMES = {
    "Report": "report",
    "VariantReport": "report",
    "verify": "verification",
    "write_certificates": "certification",
    "write_page": "page",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
