"""What lies beside a decoder's graph, and who can load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from decoder_families import build
from typer.testing import CliRunner

from causal_attn.cli.app import app
from causal_attn.errors import UsageError
from causal_attn.export import export
from causal_attn.package import read_package
from causal_attn.runtime import load

LENGTHS = (1, 2, 7)
PROMPT = [3, 17, 42, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as its library saves it, with something called a tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    build("llama").save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"any": "text"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="module")
def package(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported on the command line."""
    path = tmp_path_factory.mktemp("exported") / "package"
    arguments = ["export", str(folder), "-o", str(path), "--lengths", "1,2,7", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return path


def test_configuration_and_tokenizer_are_carried_along(package: Path, folder: Path) -> None:
    beside = read_package(package).variants[0].directory
    for name in ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (beside / name).read_bytes() == (folder / name).read_bytes()


def test_genai_generates_the_same_tokens(package: Path) -> None:
    og = pytest.importorskip("onnxruntime_genai")
    model = og.Model(str(read_package(package).variants[0].directory))
    options = og.GeneratorParams(model)
    options.set_search_options(max_length=20, min_length=20, do_sample=False)
    generator = og.Generator(model, options)
    generator.append_tokens(np.array([PROMPT], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    with torch.no_grad():
        wanted = build("llama").generate(  # type: ignore[operator]
            torch.tensor([PROMPT]), do_sample=False, max_length=20, min_length=20, pad_token_id=0
        )
    assert generator.get_sequence(0).tolist() == wanted[0].tolist()


def test_a_package_with_companions_is_replaced(package: Path) -> None:
    export(build("llama"), package, form="decomposed", lengths=LENGTHS, dtype="float16")
    variant = read_package(package).variants[0]
    assert {tensor.dtype for tensor in variant.contract.outputs} == {"float16"}
    assert not (variant.directory / "tokenizer.json").exists()


def test_the_last_logits_alone(tmp_path: Path) -> None:
    export(build("llama"), tmp_path / "last", form="decomposed", lengths=LENGTHS, last_logits=True)
    with load(tmp_path / "last", provider="cpu") as session:
        logits = session.contract.outputs[0]
    assert (logits.name, logits.dims) == ("logits", ("batch", 1, 64))


def test_only_language_models_have_logits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`last_logits` must be left out"):
        export(torch.nn.Linear(2, 2), tmp_path / "x", last_logits=True)


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    model = build("gemma2")
    embeddings: Any = model.get_input_embeddings()
    vocabulary, width = list(embeddings.weight.shape)
    assert model.config.tie_word_embeddings
    package = export(model, tmp_path / "tied", form="decomposed", lengths=LENGTHS)
    graph = onnx.load(package.variants[0].model).graph
    tables = [list(tensor.dims) for tensor in graph.initializer]
    assert tables.count([vocabulary, width]) + tables.count([width, vocabulary]) == 1


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such model"}))
    result = CliRunner().invoke(app, ["export", str(tmp_path), "-o", str(tmp_path / "x")])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert "folder with a causal language model" in " ".join(result.output.split())
