"""Run a test once for each execution provider; what is not installed is skipped, in words."""

from __future__ import annotations

import pytest

from causal_attn import Provider
from causal_attn.runtime import available_providers


def _param(provider: Provider) -> object:
    missing = provider not in available_providers()
    reason = f"{provider.ort_name} is not available: the installed ONNX Runtime does not have it"
    return pytest.param(
        provider, id=str(provider), marks=pytest.mark.skipif(missing, reason=reason)
    )


PROVIDERS = [_param(provider) for provider in (Provider.CPU, Provider.CUDA, Provider.OPENVINO)]
