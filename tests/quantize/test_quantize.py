"""Packages with weights of 4 and 8 bits: checked again, and honest about what rounding changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from causal_attn.errors import UsageError
from causal_attn.export import export
from causal_attn.package import read_package
from causal_attn.quantize import quantize
from causal_attn.quantize.weights import quantize_weights

LENGTHS = (1, 2, 5)


class Tied(nn.Module):
    """One layer of attention between an embedding and a head that is the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(23, 48)
        self.qkv = nn.Linear(48, 144)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.table(input_ids)
        q, k, v = self.qkv(x).unflatten(2, (3, 4, 12)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = x + y.transpose(1, 2).flatten(2)
        return {"logits": hidden @ self.table.weight.T}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("source") / "tied"
    export(Tied().eval(), path, example_inputs=(torch.randint(0, 23, (2, 7)),), lengths=LENGTHS)
    return path


@pytest.mark.parametrize(("bits", "error"), [(4, 0.2), (8, 0.02)])
def test_a_package_is_quantized_and_checked_again(
    source: Path, tmp_path: Path, bits: int, error: float
) -> None:
    package = quantize(source, tmp_path / "small", bits=bits, lengths=LENGTHS)
    (variant,) = package.variants
    model = onnx.load(variant.model)
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert len(products) == 2, "the projection and the tied head"
    certificate = variant.certificate
    assert certificate is not None
    assert certificate.passed
    checks = {check.name: check for check in certificate.checks}
    assert str(certificate.verdict) == "causal"
    assert checks["parity"].passed
    figures = checks["error of quantized weights"].figures["logits"]
    assert 0 < figures["relative"] < error
    assert figures["mean_abs"] <= figures["max_abs"]
    assert 0.5 < figures["top_1"] <= 1
    stated = variant.contract.choice["quantized"]
    assert (stated["bits"], stated["block_size"], stated["products"]) == (bits, 32, 2)


def test_a_weight_in_the_wrong_place_is_found(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quantized graph agrees with itself in float64 whatever its weights are."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantizer

    right = DefaultWeightOnlyQuantizer.qbits_block_quant
    monkeypatch.setattr(
        DefaultWeightOnlyQuantizer,
        "qbits_block_quant",
        lambda self, weights: right(self, np.ascontiguousarray(np.roll(weights, 1, axis=1))),
    )
    model = onnx.load(read_package(source).variants[0].model)
    assert quantize_weights(model, 4, 32).largest_step > 2


def test_gemm_and_shared_weights() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        both (float[n, 32] x) => (float[n, 32] y)
        { a = Gemm <transB = 1> (x, w, c) b = MatMul (a, w) y = MatMul (b, w) }
        """
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w": (32, 32), "c": (32,)}.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made = quantize_weights(model, 4, 16)
    onnx.checker.check_model(made.model)
    assert made.products == 3
    names = [tensor.name for tensor in made.model.graph.initializer]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("wrong", [{"bits": 3}, {"block_size": 33}])
def test_what_cannot_be_is_refused(source: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(wrong))}` must be one of"):
        quantize(source, tmp_path / "no", **wrong)


def test_it_is_not_written_into_its_source(source: Path) -> None:
    with pytest.raises(UsageError, match="must not lie inside the package"):
        quantize(source, source / "small")


def test_nothing_to_quantize() -> None:
    from causal_attn import models

    with pytest.raises(UsageError, match="nothing to quantize"):
        quantize(models.path("causal_attention"), Path("no"))


def test_the_quantizer_leaves_logging_alone() -> None:
    code = (
        "import logging, onnx; from causal_attn.quantize.weights import _quiet\n"
        "with _quiet(): import onnxruntime.quantization.matmul_nbits_quantizer\n"
        "assert not logging.getLogger().handlers and logging.getLogger().level == 30"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
