"""What a caller may feed a model and what comes back: `contract.json` of a variant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from causal_attn.errors import PackageError, SpecError
from causal_attn.spec import AttentionSpec

__all__ = ["DTYPES", "SCHEMA", "Contract", "TensorContract"]

SCHEMA = "causal_attn.contract/1"

DTYPES = (
    "float16", "bfloat16", "float32", "float64",
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip
"""Tensor dtypes a contract may name, by numpy's names (ml_dtypes' for bfloat16)."""


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
        form: ``decomposed``, ``attention``, ``gqa``, ``blocked``, or ``captured`` for a user's
            module whose attention was kept as it was written.
        opset: Version of the default ONNX domain.
        spec: The attention, if there is one for the whole graph; ``None`` for a user's module.
        tokens: Name of the dim along which the graph is causal.
        choice: How ``form="auto"`` chose: measured figures or the rule. Empty if it did not.
    """

    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    form: str
    opset: int
    spec: AttentionSpec | None = None
    tokens: str = "tokens"
    choice: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Indented JSON with sorted keys, the text of ``contract.json``."""
        values = {
            "schema": SCHEMA,
            "inputs": [asdict(tensor) for tensor in self.inputs],
            "outputs": [asdict(tensor) for tensor in self.outputs],
            "form": self.form,
            "opset": self.opset,
            "spec": None if self.spec is None else self.spec.to_dict(),
            "tokens": self.tokens,
            "choice": dict(self.choice),
        }
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Read what `to_json` wrote.

        Raises:
            PackageError: `text` is not JSON or not a contract; the message says where.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PackageError(f"The contract must be JSON, got: {error}.") from None
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            raise PackageError(
                f"The contract must be a JSON object with schema {SCHEMA!r}, got "
                f"{values.get('schema') if isinstance(values, dict) else type(values).__name__!r}."
            )
        known = {"schema", "inputs", "outputs", "form", "opset", "spec", "tokens", "choice"}
        if set(values) != known:
            raise PackageError(
                f"The contract must have exactly the fields {sorted(known)}, got {sorted(values)}."
            )
        try:
            spec = None if values["spec"] is None else AttentionSpec.from_dict(values["spec"])
        except SpecError as error:
            raise PackageError(f"The contract's spec is wrong: {error}") from None
        if not isinstance(values["opset"], int) or isinstance(values["opset"], bool):
            raise PackageError(f"`opset` must be an integer, got {values['opset']!r}.")
        for name in ("form", "tokens"):
            if not isinstance(values[name], str):
                raise PackageError(f"`{name}` must be a string, got {values[name]!r}.")
        if not isinstance(values["choice"], dict):
            raise PackageError(f"`choice` must be an object, got {values['choice']!r}.")
        return cls(
            inputs=_tensors("inputs", values["inputs"]),
            outputs=_tensors("outputs", values["outputs"]),
            form=values["form"],
            opset=values["opset"],
            spec=spec,
            tokens=values["tokens"],
            choice=values["choice"],
        )


def _tensors(where: str, values: Any) -> tuple[TensorContract, ...]:
    if not isinstance(values, list) or not values:
        raise PackageError(f"`{where}` must be a non-empty list, got {values!r}.")
    tensors = tuple(_tensor(f"{where}[{index}]", value) for index, value in enumerate(values))
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise PackageError(f"`{where}` must have distinct names, got {names}.")
    return tensors


def _tensor(where: str, value: Any) -> TensorContract:
    if not isinstance(value, dict) or set(value) != {"name", "dtype", "dims"}:
        raise PackageError(f"`{where}` must have name, dtype and dims, got {value!r}.")
    if not isinstance(value["name"], str) or not value["name"]:
        raise PackageError(f"`{where}.name` must be a non-empty string, got {value['name']!r}.")
    if value["dtype"] not in DTYPES:
        raise PackageError(f"`{where}.dtype` must be one of {DTYPES}, got {value['dtype']!r}.")
    dims = value["dims"]
    if not isinstance(dims, list) or not all(
        (isinstance(dim, str) and dim)
        or (isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0)
        for dim in dims
    ):
        raise PackageError(
            f"`{where}.dims` must be a list of names and sizes >= 0, got {value['dims']!r}."
        )
    return TensorContract(name=value["name"], dtype=value["dtype"], dims=tuple(dims))
