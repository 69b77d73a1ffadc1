"""Small models, their contracts and certificates, and what the models should compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model

from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.package.contract import Contract, TensorContract

__all__ = [
    "QKV",
    "attention_bytes",
    "attention_contract",
    "contract_of",
    "expected",
    "passed_certificate",
    "with_entries",
]

QKV = ("batch", "heads", "tokens", "features")

_CAST_TO = {"float32": 1, "float16": 10}


def attention_bytes(dtype: str = "float32") -> bytes:
    """Causal attention, decomposed, every dim dynamic: ``(q, k, v) -> (output, weights)``."""
    return model(
        [Tensor(name, QKV, dtype) for name in "qkv"],
        [Tensor("output", QKV, dtype), Tensor("weights", (*QKV[:3], "tokens"), dtype)],
        [
            Node("Transpose", ["k"], ["kt"], "transpose", attributes={"perm": [0, 1, 3, 2]}),
            Node("Shape", ["q"], ["f"], "features", attributes={"start": 3, "end": 4}),
            Node("Cast", ["f"], ["ff"], "cast", attributes={"to": _CAST_TO[dtype]}),
            Node("Sqrt", ["ff"], ["root"], "sqrt"),
            Node("MatMul", ["q", "kt"], ["products"], "products"),
            Node("Div", ["products", "root"], ["scores"], "scores"),
            Node("Shape", ["q"], ["t"], "tokens", attributes={"start": 2, "end": 3}),
            Node("Squeeze", ["t"], ["length"], "squeeze"),
            Node("Range", ["zero", "length", "one"], ["keys"], "keys"),
            Node("Unsqueeze", ["keys", "last"], ["queries"], "queries"),
            Node("LessOrEqual", ["keys", "queries"], ["visible"], "visible"),
            Node("Where", ["visible", "scores", "hidden"], ["masked"], "mask"),
            Node("Softmax", ["masked"], ["weights"], "softmax", attributes={"axis": -1}),
            Node("MatMul", ["weights", "v"], ["output"], "values"),
        ],
        {
            "zero": np.array(0),
            "one": np.array(1),
            "last": np.array([-1]),
            "hidden": np.array(-np.inf, dtype),
        },
    )


def contract_of(
    inputs: Mapping[str, tuple[str, tuple[str | int, ...]]],
    outputs: Mapping[str, tuple[str, tuple[str | int, ...]]],
    cache: CacheLayout | None = None,
) -> Contract:
    """A contract from ``name -> (dtype, dims)``."""

    def tensors(
        described: Mapping[str, tuple[str, tuple[str | int, ...]]],
    ) -> tuple[TensorContract, ...]:
        return tuple(
            TensorContract(name=name, dtype=dtype, dims=dims)
            for name, (dtype, dims) in described.items()
        )

    return Contract(
        inputs=tensors(inputs), outputs=tensors(outputs), cache=cache, form="decomposed", opset=18
    )


def fixed_cache(pairs: Mapping[str, str], lengths: str, *, axis: int = 2) -> CacheLayout:
    """Of ``past -> present`` with a dim ``capacity`` at `axis`, written in place."""
    return CacheLayout(
        entries=tuple(
            CacheEntry(input=past, output=present, kind=EntryKind.FIXED, axis=axis)
            for past, present in pairs.items()
        ),
        lengths=lengths,
        capacity="capacity",
        in_place=True,
    )


def attention_contract(dtype: str = "float32") -> Contract:
    """The contract of `attention_bytes`."""
    return contract_of(
        dict.fromkeys("qkv", (dtype, QKV)),
        {"output": (dtype, QKV), "weights": (dtype, (*QKV[:3], "tokens"))},
    )


def passed_certificate(digest: str) -> Certificate:
    """A certificate that says yes."""
    return Certificate(
        digest=digest,
        verdict=Verdict.CAUSAL,
        checks=tuple(
            Check(name=name, passed=True, detail="made up for a test")
            for name in ("parity", "batch is independent")
        ),
    )


def _field(number: int, value: bytes) -> bytes:
    size, length = bytearray(), len(value)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + value


def with_entries(serialized: bytes, entries: Mapping[str, str]) -> bytes:
    """`serialized` with more ``metadata_props``: protobuf lets fields be appended."""
    return serialized + b"".join(
        _field(14, _field(1, key.encode()) + _field(2, value.encode()))
        for key, value in entries.items()
    )


def expected(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Causal attention in float64: output and weights."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    tokens = q.shape[-2]
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, weights
