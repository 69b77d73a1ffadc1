"""Graphs by other people's exporters, made on the spot from tiny random configurations.

Nothing is downloaded: weights are drawn, and the tokenizer that one builder asks for has 64 words.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

__all__ = ["BUILDERS", "LAYERS", "WINDOW", "build", "decoder", "run_cached"]

LAYERS, HEADS, KV_HEADS, HIDDEN, VOCABULARY, POSITIONS = 2, 4, 2, 32, 64, 128
HEAD_DIM = HIDDEN // HEADS
WINDOW = 4

# Its classes are made at run time and mean little to type checkers.
transformers: Any = importlib.import_module("transformers")

# Far above the usual 0.02, so that attention is not almost a mean.
_SPREAD = {"vocab_size": VOCABULARY, "initializer_range": 0.3}
_PLAIN = {
    **_SPREAD, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS, "intermediate_size": 64,
}  # fmt: skip
_GROUPED = {**_PLAIN, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
_GPT2 = {**_SPREAD, "n_positions": POSITIONS, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}

_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": WINDOW}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "bert": ("BertForMaskedLM", "BertConfig", _PLAIN),
    "bert_decoder": ("BertLMHeadModel", "BertConfig", {**_PLAIN, "is_decoder": True}),
}
"""Name -> model, configuration, values."""


def decoder(family: str, **changes: Any) -> Any:
    """A tiny random model of a family; weights are the same in every call."""
    model, config, values = _FAMILIES[family]
    torch.manual_seed(0)
    return getattr(transformers, model)(
        getattr(transformers, config)(**{**values, **changes})
    ).eval()


class _Logits(torch.nn.Module):
    """Logits only: no cache goes in or comes out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        options = {} if isinstance(self.model, transformers.BertForMaskedLM) else _NO_CACHE
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **options).logits


_NO_CACHE = {"use_cache": False}


class _Cached(torch.nn.Module):
    """The ecosystem's flat convention: keys and values of every layer in, all of them out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
        pairs = [tuple(past[2 * layer : 2 * layer + 2]) for layer in range(len(past) // 2)]
        cache = transformers.DynamicCache(pairs)
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=True,
        )
        layers = result.cache.layers
        return result.logits, *(part for layer in layers for part in (layer.keys, layer.values))


def run_cached(model: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    """What a graph of `torch_cached` must return for `feeds`, by torch."""
    past = [array for name, array in feeds.items() if name.startswith("past_key_values")]
    ids = (feeds[name] for name in ("input_ids", "attention_mask", "position_ids"))
    with torch.no_grad():
        logits, *cache = _Cached(model)(*ids, past)
    names = [f"present.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    return {"logits": logits, **dict(zip(names, cache, strict=True))}


def torch_logits(family: str, folder: Path) -> Path:
    """torch.onnx over a model without its cache."""
    batch, tokens = Dim("batch_size"), Dim("sequence_length")
    ids = torch.randint(0, VOCABULARY, (2, 7))
    program = torch.onnx.export(
        _Logits(decoder(family)).eval(),
        kwargs={"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        dynamic_shapes={
            "input_ids": {0: batch, 1: tokens},
            "attention_mask": {0: batch, 1: tokens},
        },
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamo=True,
        verbose=False,
    )
    return _saved(program, folder)


def torch_cached(family: str, folder: Path) -> Path:
    """torch.onnx over a model with its cache as flat inputs and outputs."""
    kv_heads = KV_HEADS if family in ("llama", "mistral") else HEADS
    batch, tokens, past = Dim("batch_size"), Dim("sequence_length"), Dim("past_sequence_length")
    ids = torch.randint(0, VOCABULARY, (2, 5))
    cache = [torch.randn(2, kv_heads, 3, HEAD_DIM) for _ in range(2 * LAYERS)]
    names = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    program = torch.onnx.export(
        _Cached(decoder(family)).eval(),
        kwargs={
            "input_ids": ids,
            "attention_mask": torch.ones(2, 8, dtype=torch.int64),
            "position_ids": torch.arange(3, 8).expand(2, 5).contiguous(),
            "past": cache,
        },
        dynamic_shapes={
            "input_ids": {0: batch, 1: tokens},
            "attention_mask": {0: batch, 1: Dim.AUTO},
            "position_ids": {0: batch, 1: tokens},
            "past": [{0: batch, 2: past}] * len(cache),
        },
        input_names=[
            "input_ids", "attention_mask", "position_ids",
            *(f"past_key_values.{name}" for name in names),
        ],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamo=True,
        verbose=False,
    )  # fmt: skip
    return _saved(program, folder)


def _saved(program: Any, folder: Path) -> Path:
    program.save(folder / "model.onnx")
    return folder / "model.onnx"


def exporters(family: str, folder: Path) -> Path:
    """transformers' own exporter; every dim is named by torch (``s43``)."""
    ids = torch.randint(0, VOCABULARY, (2, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return _exported(decoder(family), inputs, folder)


def exporters_decode(family: str, folder: Path) -> Path:
    """transformers' own exporter, the stage that continues a cache by several tokens."""
    parts: Any = importlib.import_module("transformers.exporters.utils")
    ids = torch.randint(0, VOCABULARY, (2, 7))
    model = decoder(family)
    stages = parts.decompose_for_generation(
        model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, multi_token_decode=True
    )
    part, inputs = stages["decode"]
    return _exported(part, inputs, folder)


def _exported(model: Any, inputs: Any, folder: Path) -> Path:
    onnx: Any = importlib.import_module("transformers.exporters.exporter_onnx")
    exported = onnx.OnnxExporter().export(model, inputs, onnx.OnnxConfig(dynamic=True))
    exported.save_pretrained(folder)
    return folder / "model.onnx"


def genai(family: str, folder: Path) -> Path:
    """onnxruntime-genai's model builder, from a checkpoint on disk."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    checkpoint = folder / "checkpoint"
    # ONNX Runtime's grouped kernel rotates heads of a multiple of 16 only.
    decoder(family, head_dim=16).save_pretrained(checkpoint)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), unk_token="w0",
        bos_token="w1", eos_token="w2", pad_token="w2",
    ).save_pretrained(checkpoint)  # fmt: skip
    # The builder is a script: it puts its folder on sys.path and prints. It gets its own process.
    result = subprocess.run(
        [
            sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint),
            "-o", str(folder / "out"), "-p", "fp32", "-e", "cpu", "-c", str(folder / "cache"),
            "--extra_options", "hf_token=false",
        ],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if result.returncode:
        raise RuntimeError(f"the builder failed: {result.stderr[-2000:]}")
    return folder / "out" / "model.onnx"


BUILDERS: dict[str, tuple[Callable[[str, Path], Path], str]] = {
    "torch-llama-cached": (torch_cached, "llama"),
    "torch-gpt2-cached": (torch_cached, "gpt2"),
    "torch-mistral-cached": (torch_cached, "mistral"),
    "torch-bert": (torch_logits, "bert"),
    "torch-bert-decoder": (torch_logits, "bert_decoder"),
    "exporters-llama-decode": (exporters_decode, "llama"),
    "exporters-gpt2": (exporters, "gpt2"),
    "exporters-mistral": (exporters, "mistral"),
    "exporters-bert": (exporters, "bert"),
    "genai-llama": (genai, "llama"),
    "genai-mistral": (genai, "mistral"),
}
"""Name -> maker and family."""


def build(name: str, folder: Path) -> Path:
    """Make a graph of `BUILDERS` in `folder`; its path."""
    make, family = BUILDERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet():
        return make(family, folder)


@contextlib.contextmanager
def _known_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in (
            # Two axes of one name, which is what was asked for.
            r"# The axis name: \w+ will not be used",
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    try:
        with _known_warnings(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
