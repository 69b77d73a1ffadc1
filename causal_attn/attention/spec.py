"""What one causal attention is, without any framework in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from causal_attn.errors import PackageError, SpecError
from causal_attn.json_text import parse_json, shown

__all__ = ["AttentionSpec", "CacheKind"]


class CacheKind(StrEnum):
    """How keys and values of earlier calls reach a call.

    The words are those of transformers' cache classes.
    """

    NONE = "none"
    """Every call sees only its own tokens."""
    DYNAMIC = "dynamic"
    """``past`` goes in, ``present = concat(past, new)`` comes out; it grows."""
    STATIC = "static"
    """A buffer of fixed capacity that new tokens are written into."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """Causal attention, decided once: the graph, the runtime and the checks all read this.

    Attributes:
        num_heads: Query heads; ``None`` leaves them to the tensors (a dynamic dim).
        num_kv_heads: Key/value heads, a divisor of ``num_heads``. ``None``: as many as
            ``num_heads``.
        head_dim: Features of one query or key head; ``None`` leaves them to the tensors.
        scale: Factor on the scores, > 0. ``None``: ``1 / sqrt(features)``.
        window: Tokens a query sees, counting itself, >= 1. ``None``: all of the past.
        softcap: ``c`` in ``c * tanh(score / c)``, applied before the mask, > 0. ``None``: off.
        cache: See `CacheKind`.

    Raises:
        SpecError: A value is out of range, or fields contradict each other.
    """

    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    cache: CacheKind = CacheKind.NONE

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim", "window"):
            _require_positive_int(name, getattr(self, name))
        for name in ("scale", "softcap"):
            require_positive(name, getattr(self, name))
        if self.num_kv_heads is not None:
            if self.num_heads is None:
                raise SpecError(
                    f"`num_kv_heads` must come with `num_heads`, got {self.num_kv_heads} without "
                    "it. Give both, or neither."
                )
            if self.num_heads % self.num_kv_heads:
                raise SpecError(
                    f"`num_kv_heads` must divide `num_heads`, got {self.num_kv_heads} for "
                    f"{self.num_heads} heads. Each key/value head serves the same number of "
                    "query heads."
                )
        try:
            object.__setattr__(self, "cache", CacheKind(self.cache))
        except ValueError:
            raise SpecError(
                f"`cache` must be one of {[str(kind) for kind in CacheKind]}, got "
                f"{shown(self.cache)}."
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"cache": str(self.cache)}

    def to_json(self) -> str:
        """One JSON object; `from_json` gives back an equal spec."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionSpec:
        """Build a spec from JSON values.

        Raises:
            SpecError: `values` is not an object, has an unknown field, or a value is wrong.
        """
        if not isinstance(values, Mapping):
            raise SpecError(f"`values` must be a JSON object, got {type(values).__name__}.")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known, key=str):
            raise SpecError(
                f"`values` must have only the fields {sorted(known)}, got {shown(unknown)}."
            )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> AttentionSpec:
        """Build a spec from what `to_json` wrote.

        Raises:
            SpecError: `text` is not JSON, or not a spec.
        """
        try:
            values = parse_json(text, "`text`")
        except PackageError as error:
            raise SpecError(str(error)) from None
        return cls.from_dict(values)


def require_positive(name: str, value: float | None) -> None:
    """Refuse a `value` that is given and is not a finite number > 0.

    ONNX Attention takes the square root of the scale below opset 23's expansion, so a scale <= 0
    becomes NaN there without an error.

    Raises:
        SpecError: Naming the argument.
    """
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= sys.float_info.max:
        raise SpecError(f"`{name}` must be a finite number > 0 or None, got {shown(value)}.")


def _require_positive_int(name: str, value: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(f"`{name}` must be an integer >= 1 or None, got {shown(value)}.")
