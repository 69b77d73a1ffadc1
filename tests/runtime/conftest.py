"""Packages and lone models that the runtime tests load, on every provider that is installed.

Nothing here imports torch or onnx: the same tests run where only the wheel is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from runtime_cases import (
    attention_bytes,
    attention_contract,
    passed_certificate,
    with_entries,
)

from causal_attn.machine.provider import Provider
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CERTIFICATE_KEY, CONTRACT_KEY, model_digest


@pytest.fixture(params=[Provider.CPU, Provider.OPENVINO, Provider.CUDA, Provider.WEBGPU], ids=str)
def provider(request: pytest.FixtureRequest) -> Provider:
    """Each provider of the installed ONNX Runtime; the others are skipped by name."""
    wanted: Provider = request.param
    available = onnxruntime.get_available_providers()
    if wanted.ort_name not in available:
        pytest.skip(f"{wanted.ort_name} is not available: this ONNX Runtime has {available}")
    return wanted


@pytest.fixture
def lone_model(tmp_path: Path) -> Callable[..., Path]:
    """Write an ``.onnx`` file with its contract and, by default, a certificate inside."""

    def write(serialized: bytes, contract: Contract, *, certified: bool = True) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(serialized)
        entries = {CONTRACT_KEY: contract.to_json()}
        if certified:
            entries[CERTIFICATE_KEY] = passed_certificate(model_digest(path)).to_json()
        path.write_bytes(with_entries(serialized, entries))
        return path

    return write


@pytest.fixture
def attention(lone_model: Callable[..., Path]) -> Path:
    """A certified lone model of causal attention in float32."""
    return lone_model(attention_bytes(), attention_contract())


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Write a package of `attention_bytes` with one variant for each of `providers`."""

    def write(*providers: Provider, certified: bool = True, **options: str) -> Path:
        root = tmp_path / "attention"
        variants: dict[str, Any] = {}
        for provider in providers:
            folder = root / "attention" / provider
            folder.mkdir(parents=True)
            (folder / "model.onnx").write_bytes(attention_bytes())
            (folder / "contract.json").write_text(attention_contract().to_json())
            slot = {"contract": "contract.json"}
            if certified:
                slot["certificate"] = "certificate.json"
                certificate = passed_certificate(model_digest(folder / "model.onnx"))
                (folder / "certificate.json").write_text(certificate.to_json())
            ort = {"model_file": "model.onnx", "session_options": options}
            variants[provider] = {
                "variant_directory": f"attention/{provider}",
                "ep": provider.ort_name,
                "device": provider.device,
                "executor_info": {"ort": ort, "causal_attn": slot},
            }
        manifest = {
            "schema_version": "1.0",
            "components": {"attention": {"variants": variants}},
        }
        (root / "manifest.json").write_text(json.dumps(manifest))
        return root

    return write


@pytest.fixture
def qkv() -> tuple[NDArray[np.float32], ...]:
    """Three different arrays of 2 sequences, 3 heads, 5 tokens, 4 features."""
    random = np.random.default_rng(0)
    return tuple(random.standard_normal((2, 3, 5, 4), np.float32) for _ in range(3))
