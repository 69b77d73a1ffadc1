"""What a caller may feed a model and what comes back: `contract.json` of a variant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import PackageError, SpecError
from causal_attn.json_text import shown
from causal_attn.machine.release import OLDEST
from causal_attn.package.cache_layout import CacheLayout, EntryKind
from causal_attn.package.dims import sizes_within
from causal_attn.package.json_fields import (
    as_integer,
    as_name,
    read_fields,
    refusal,
    write_fields,
)

__all__ = ["DTYPES", "SCHEMA", "Contract", "TensorContract"]

SCHEMA = "causal_attn.contract/3"

DTYPES = (
    "float16", "bfloat16", "float32", "float64",
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip
"""Tensor dtypes a contract may name, by numpy's names (ml_dtypes' for bfloat16)."""

MAX_OPSET = 1 << 15
"""Far above any opset there is: what is larger is damage."""

MAX_SIZE = (1 << 63) - 1
"""ONNX dims are int64."""

_FIELDS = {
    "inputs", "outputs", "form", "opset", "spec", "tokens", "cache", "choice", "onnxruntime",
}  # fmt: skip
_ENTRIES = {CacheKind.DYNAMIC: EntryKind.GROWING, CacheKind.STATIC: EntryKind.FIXED}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorContract:
    """One graph input or output.

    Attributes:
        name: As in the graph.
        dtype: One of `DTYPES`.
        dims: One entry an axis: an integer is fixed, a string is a named dim that has one size
            throughout a call (``batch``, ``heads``, ``tokens``, ``features``). An expression of
            named dims is written as ONNX writes it (``past_tokens + tokens``).
    """

    name: str
    dtype: str
    dims: tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """Inputs, outputs, and how attention is written in the graph.

    Attributes:
        inputs: In the order of the graph.
        outputs: In the order of the graph.
        form: ``decomposed``, ``attention``, ``gqa``, ``blocked``, or several joined by ``+`` for
            a graph that switches between them by the number of tokens; ``captured`` for a user's
            module all of whose attention was kept as it was written; ``foreign`` for a model of
            others, whose interface `causal_attn.verify` found.
        opset: Version of the default ONNX domain.
        spec: The attention, if there is one for the whole graph; ``None`` for a user's module.
        tokens: Name of the dim along which the graph is causal.
        cache: Which inputs and outputs are a cache, and how they go together; ``None`` if there is
            none, or none that is known. A spec with a cache always has one.
        bounds: Of dims that may not have every size: the smallest and the largest (null: none).
            ``contract.json`` leaves the field out where there are none.
        arguments: Of a user's module: what it takes besides tensors, and the values that were
            bound when it was exported: numbers, words, true, false or null. ``contract.json``
            leaves the field out where there are none.
        choice: How ``form="auto"`` chose: ``rule``, measured figures, and for several forms
            ``switch``, a list of ``{"form", "last_tokens"}`` in which the last has null for the
            tokens. For a user's module also ``captured``: how many attention calls became the op
            (``attend``), and why the others did not (``kept``: reason to number of calls). Empty
            if there is nothing to say.
        onnxruntime: ``major.minor`` of the oldest ONNX Runtime that runs the graph.

    Raises:
        PackageError: `cache` contradicts the tensors or the spec.
    """

    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    form: str
    opset: int
    spec: AttentionSpec | None = None
    tokens: str = "tokens"
    cache: CacheLayout | None = None
    bounds: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    arguments: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    onnxruntime: str = OLDEST

    def __post_init__(self) -> None:
        fault = self.cache and self.cache.fault(self.inputs, self.outputs, self.tokens)
        if fault:
            raise PackageError(f"The contract's cache is wrong: {fault}")
        kind = CacheKind.NONE if self.spec is None else self.spec.cache
        wanted = _ENTRIES.get(kind)
        if wanted is not None and (self.cache is None or not self.cache.of(wanted)):
            raise PackageError(
                f"`cache` must have entries of kind {str(wanted)!r} for a spec with cache "
                f"{str(kind)!r}, got {shown(self.cache)}."
            )

    def lengths_within(self, lengths: Iterable[int]) -> tuple[int, ...]:
        """Those of `lengths` that `bounds` allow for the tokens; the nearest if there are none."""
        return sizes_within(lengths, *self.bounds.get(self.tokens, (1, None)))

    def to_json(self) -> str:
        """Indented JSON with sorted keys, the text of ``contract.json``.

        Raises:
            PackageError: `choice` holds something that is not a JSON value.
        """
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "inputs": [asdict(tensor) for tensor in self.inputs],
            "outputs": [asdict(tensor) for tensor in self.outputs],
            "form": self.form,
            "opset": self.opset,
            "spec": None if self.spec is None else self.spec.to_dict(),
            "tokens": self.tokens,
            "cache": None if self.cache is None else self.cache.to_dict(),
            "choice": dict(self.choice),
            "onnxruntime": self.onnxruntime,
        }
        if self.bounds:
            values["bounds"] = {dim: list(sizes) for dim, sizes in self.bounds.items()}
        if self.arguments:
            values["arguments"] = dict(self.arguments)
        return write_fields(values, "The contract")

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Read what `to_json` wrote.

        Raises:
            PackageError: `text` is not JSON or not a contract; the message says where.
        """
        optional = {"bounds", "arguments"}
        values = read_fields(text, "The contract", SCHEMA, _FIELDS, optional)
        try:
            spec = None if values["spec"] is None else AttentionSpec.from_dict(values["spec"])
        except SpecError as error:
            raise PackageError(f"The contract's spec is wrong: {error}") from None
        if not isinstance(values["choice"], dict):
            raise refusal("choice", "be an object", values["choice"])
        oldest = values["onnxruntime"]
        if not isinstance(oldest, str) or not re.fullmatch(r"\d{1,4}\.\d{1,4}", oldest, re.ASCII):
            raise refusal("onnxruntime", "be the oldest release as 'major.minor'", oldest)
        return cls(
            inputs=_tensors("inputs", values["inputs"]),
            outputs=_tensors("outputs", values["outputs"]),
            form=as_name("form", values["form"]),
            opset=as_integer("opset", values["opset"], 1, MAX_OPSET),
            spec=spec,
            tokens=as_name("tokens", values["tokens"]),
            cache=None if values["cache"] is None else CacheLayout.from_dict(values["cache"]),
            bounds=_bounds(values.get("bounds", {})),
            arguments=_arguments(values.get("arguments", {})),
            choice=values["choice"],
            onnxruntime=oldest,
        )


def _bounds(values: Any) -> dict[str, tuple[int, int | None]]:
    if not isinstance(values, dict) or not all(map(_is_range, values.values())):
        raise PackageError(
            "`bounds` must be an object of [smallest, largest or null] with 1 <= smallest <= "
            f"largest, got {shown(values)}."
        )
    return {dim: (low, high) for dim, (low, high) in values.items()}


def _arguments(values: Any) -> dict[str, bool | int | float | str | None]:
    if not isinstance(values, dict) or any(
        isinstance(value, list | dict) for value in values.values()
    ):
        raise PackageError(
            f"`arguments` must be an object of numbers, words, true, false or null, got "
            f"{shown(values)}."
        )
    return values


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        return False
    low, high = value
    return 1 <= low <= MAX_SIZE and (high is None or (type(high) is int and low <= high))


def _tensors(where: str, values: Any) -> tuple[TensorContract, ...]:
    if not isinstance(values, list) or not values:
        raise refusal(where, "be a non-empty list", values)
    tensors = tuple(_tensor(f"{where}[{index}]", value) for index, value in enumerate(values))
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise refusal(where, "have distinct names", names)
    return tensors


def _tensor(where: str, value: Any) -> TensorContract:
    if not isinstance(value, dict) or set(value) != {"name", "dtype", "dims"}:
        raise refusal(where, "have name, dtype and dims", value)
    name = as_name(f"{where}.name", value["name"])
    if value["dtype"] not in DTYPES:
        raise refusal(f"{where}.dtype", f"be one of {DTYPES}", value["dtype"])
    dims = value["dims"]
    if not isinstance(dims, list) or not all(
        (isinstance(dim, str) and dim)
        or (isinstance(dim, int) and not isinstance(dim, bool) and 0 <= dim <= MAX_SIZE)
        for dim in dims
    ):
        wanted = f"be a list of names and sizes from 0 to {MAX_SIZE}"
        raise refusal(f"{where}.dims", wanted, dims)
    return TensorContract(name=name, dtype=value["dtype"], dims=tuple(dims))
