"""A language model of one layer that remembers: its next token depends on every earlier one.

Keys are the embeddings, and so are values: ``logits = softmax(e e^T where visible) e W``. The same
is here in numpy over the whole sequence, with no cache, as what generation is held against.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model
from runtime_cases import contract_of, passed_certificate

from causal_attn.machine.provider import Provider
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.digest import model_digest

__all__ = ["VOCABULARY", "decoder_bytes", "logits_of", "write_decoder"]

VOCABULARY, WIDTH = 23, 8

_APPENDED = (
    Node("Concat", ["past_key_values.0.key", "new4"], ["present.0.key"], attributes={"axis": 2}),
    Node("Shape", ["past_key_values.0.key"], ["past1"], attributes={"start": 2, "end": 3}),
    Node("Shape", ["present.0.key"], ["end1"], attributes={"start": 2, "end": 3}),
    Node("Squeeze", ["past1"], ["past0"]),
    Node("Squeeze", ["end1"], ["end0"]),
    Node("Range", ["past0", "end0", "one"], ["slots"]),
    Node("Unsqueeze", ["slots", "last"], ["rows"]),
)
"""Behind the past; ``rows [tokens, 1]`` are the columns in which the new tokens stand."""

_WRITTEN = (
    Node("Shape", ["input_ids"], ["batch1"], attributes={"start": 0, "end": 1}),
    Node("Shape", ["input_ids"], ["tokens1"], attributes={"start": 1, "end": 2}),
    Node("Squeeze", ["batch1"], ["batch0"]),
    Node("Squeeze", ["tokens1"], ["tokens0"]),
    Node("Range", ["zero", "batch0", "one"], ["sequences"]),
    Node("Range", ["zero", "tokens0", "one"], ["places0"]),
    Node("Unsqueeze", ["past_lengths", "axis1"], ["lengths"]),
    Node("Add", ["lengths", "places0"], ["slots"]),
    Node("Unsqueeze", ["slots", "axes13"], ["rows"]),
    Node("Mul", ["rows", "zero"], ["nowhere"]),
    Node("Unsqueeze", ["sequences", "axes123"], ["sequences4"]),
    Node("Add", ["nowhere", "sequences4"], ["which"]),
    Node("Concat", ["which", "nowhere", "rows"], ["indices"], attributes={"axis": 3}),
    Node("ScatterND", ["past_key_values.0.key", "indices", "new4"], ["present.0.key"]),
)
"""Behind the tokens of each sequence; ``rows [batch, 1, tokens, 1]`` are their slots."""

_random = np.random.default_rng(7)
_TABLE = _random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
_HEAD = _random.standard_normal((WIDTH, VOCABULARY)).astype(np.float32)

_TOTAL = "past_tokens + tokens"
_PAST = ("batch", 1, "past_tokens", WIDTH)
_PRESENT = ("batch", 1, _TOTAL, WIDTH)
_BUFFER = ("batch", 1, "capacity", WIDTH)


def decoder_bytes(*, last: bool = False, attentions: bool = False, fixed: bool = False) -> bytes:
    """The model.

    Args:
        last: Logits of the last token alone.
        attentions: With its weights.
        fixed: With a cache of fixed capacity, which is written in place.
    """
    slots = "capacity" if fixed else "total"
    inputs = [
        Tensor("input_ids", ("batch", "tokens"), "int64"),
        Tensor("attention_mask", ("batch", slots), "int64"),
        Tensor("position_ids", ("batch", "tokens"), "int64"),
        *([Tensor("past_lengths", ("batch",), "int64")] if fixed else []),
        Tensor("past_key_values.0.key", _BUFFER if fixed else _PAST),
    ]
    outputs = [
        Tensor("logits", ("batch", 1 if last else "tokens", VOCABULARY)),
        Tensor("present.0.key", ("batch", 1, slots, WIDTH)),
        *([Tensor("attentions.0", ("batch", 1, "tokens", "total"))] if attentions else []),
    ]
    weights = "attentions.0" if attentions else "weights"
    nodes = [
        Node("Gather", ["table", "input_ids"], ["embedded"]),
        # Where a token stands is in what it is: a wrong position gives other logits.
        Node("Cast", ["position_ids"], ["places"], attributes={"to": 1}),
        Node("Unsqueeze", ["places", "axis2"], ["places3"]),
        Node("Mul", ["places3", "step"], ["angles"]),
        Node("Sin", ["angles"], ["shift"]),
        Node("Add", ["embedded", "shift"], ["new"]),
        Node("Unsqueeze", ["new", "axis1"], ["new4"]),
        *(_WRITTEN if fixed else _APPENDED),
        Node("Transpose", ["present.0.key"], ["keys"], attributes={"perm": [0, 1, 3, 2]}),
        Node("MatMul", ["new4", "keys"], ["scores"]),
        Node("Shape", ["present.0.key"], ["total1"], attributes={"start": 2, "end": 3}),
        Node("Squeeze", ["total1"], ["total0"]),
        Node("Range", ["zero", "total0", "one"], ["columns"]),
        Node("LessOrEqual", ["columns", "rows"], ["causal"]),
        Node("Cast", ["attention_mask"], ["real"], attributes={"to": 9}),
        Node("Unsqueeze", ["real", "axes12"], ["real4"]),
        Node("And", ["causal", "real4"], ["visible"]),
        Node("Where", ["visible", "scores", "hidden"], ["masked"]),
        Node("Softmax", ["masked"], ["unsafe"], attributes={"axis": -1}),
        Node("Where", ["visible", "unsafe", "nothing"], [weights]),
        Node("MatMul", [weights, "present.0.key"], ["seen"]),
        Node("Squeeze", ["seen", "axis1"], ["seen3"]),
        *([Node("Gather", ["seen3", "last"], ["row"], attributes={"axis": 1})] if last else []),
        Node("MatMul", ["row" if last else "seen3", "head"], ["logits"]),
    ]  # fmt: skip
    constants: dict[str, NDArray[np.generic]] = {
        "table": _TABLE,
        "head": _HEAD,
        "step": np.float32(0.3) * np.arange(1, WIDTH + 1, dtype=np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "last": np.array([-1]),
        "axes13": np.array([1, 3]),
        "axes123": np.array([1, 2, 3]),
        "axis1": np.array([1]),
        "axis2": np.array([2]),
        "axes12": np.array([1, 2]),
        "hidden": np.array(-np.inf, np.float32),
        "nothing": np.array(0, np.float32),
    }
    return model(inputs, outputs, nodes, constants)


def logits_of(ids: Sequence[int]) -> NDArray[np.float64]:
    """Logits after each of `ids`, in float64 and with no cache: ``[tokens, vocabulary]``."""
    steps = np.float32(0.3) * np.arange(1, WIDTH + 1, dtype=np.float32)
    rows = _TABLE[list(ids)] + np.sin(np.arange(len(ids))[:, None] * steps).astype(np.float64)
    scores = np.where(np.tri(len(ids), dtype=bool), rows @ rows.T, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    logits: NDArray[np.float64] = weights @ rows @ _HEAD
    return logits


def write_decoder(
    root: Path,
    *,
    last: bool = False,
    attentions: bool = False,
    fixed: bool = False,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """A package of it, with `files` of JSON beside the model."""
    contract = contract_of(
        {
            "input_ids": ("int64", ("batch", "tokens")),
            "attention_mask": ("int64", ("batch", "capacity" if fixed else _TOTAL)),
            "position_ids": ("int64", ("batch", "tokens")),
            **({"past_lengths": ("int64", ("batch",))} if fixed else {}),
            "past_key_values.0.key": ("float32", _BUFFER if fixed else _PAST),
        },
        {
            "logits": ("float32", ("batch", 1 if last else "tokens", VOCABULARY)),
            "present.0.key": ("float32", _BUFFER if fixed else _PRESENT),
            **(
                {"attentions.0": ("float32", ("batch", 1, "tokens", _TOTAL))} if attentions else {}
            ),
        },
        cache=CacheLayout(
            entries=(
                CacheEntry(
                    input="past_key_values.0.key",
                    output="present.0.key",
                    kind=EntryKind.FIXED if fixed else EntryKind.GROWING,
                    axis=2,
                ),
            ),
            lengths="past_lengths" if fixed else None,
            capacity="capacity" if fixed else None,
            in_place=fixed,
            finite=fixed,
        ),
    )
    folder = root / "toy" / "cpu"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(
        decoder_bytes(last=last, attentions=attentions, fixed=fixed)
    )
    (folder / "contract.json").write_text(contract.to_json())
    certificate = passed_certificate(model_digest(folder / "model.onnx"))
    (folder / "certificate.json").write_text(certificate.to_json())
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content))
    variant = {
        "variant_directory": "toy/cpu",
        "ep": Provider.CPU.ort_name,
        "device": "cpu",
        "executor_info": {
            "ort": {"model_file": "model.onnx", "session_options": {}},
            "causal_attn": {"contract": "contract.json", "certificate": "certificate.json"},
        },
    }
    manifest = {"schema_version": "1.0", "components": {"toy": {"variants": {"cpu": variant}}}}
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root
