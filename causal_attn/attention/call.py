"""One call of ``causal_attn::attend`` and what it returns, each as one value.

Only the schema that torch registers has its arguments side by side, in the order of `AttendCall`'s
fields. Whoever computes, writes or rewrites the op reads them here by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from torch import Tensor

from causal_attn.errors import InputError

__all__ = ["ARGUMENTS", "RESULTS", "AttendCall", "AttendResult", "by_name"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendCall:
    """Causal attention over the cached and the new tokens, asked for.

    Attributes:
        query: ``[batch, heads, q_tokens, features]``.
        key: Keys of the new tokens, ``[batch, kv_heads, q_tokens, features]``.
        value: Values of the new tokens, ``[batch, kv_heads, q_tokens, v_features]``.
        past_key: Keys of earlier calls, ``[batch, kv_heads, past_tokens, features]``, zero
            tokens allowed; with `past_value` or not at all. With `past_lengths` a buffer instead,
            ``[batch, kv_heads, capacity, features]``.
        past_value: ``[batch, kv_heads, past_tokens, v_features]``.
        kv_lengths: ``[batch]`` int64, see `causal_attn.causal_attention`.
        scale: Factor on the scores; default ``1 / sqrt(features)``.
        window: Tokens a query sees, itself included.
        softcap: ``c`` in ``c * tanh(score / c)``, before the mask.
        return_weights: Whether the weights are wanted.
        past_lengths: ``[batch]`` int64, with a past and without `kv_lengths`: the past is a buffer
            of which each sequence has filled so many tokens. The new ones are written after them
            and must fit. What lies beyond is not seen, whatever it holds (NaN and inf too).
        sinks: ``[heads]``, see `causal_attn.causal_attention`.

    Raises:
        InputError: Half a past is given, or `past_lengths` beside what it excludes.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    past_key: Tensor | None = None
    past_value: Tensor | None = None
    kv_lengths: Tensor | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    return_weights: bool = True
    past_lengths: Tensor | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.past_key is None) != (self.past_value is None):
            raise InputError("`past_key` must come with `past_value`, got one without the other.")
        if self.past_lengths is not None and (self.past is None or self.kv_lengths is not None):
            raise InputError("`past_lengths` must come with a past and without `kv_lengths`.")

    @classmethod
    def of(cls, *arguments: Any, **named: Any) -> Self:
        """The call with the arguments of the op as torch passes them on."""
        return cls(**by_name(arguments, named))

    @property
    def past(self) -> tuple[Tensor, Tensor] | None:
        """`past_key` and `past_value`, or ``None``."""
        if self.past_key is None or self.past_value is None:
            return None
        return self.past_key, self.past_value

    @property
    def past_tokens(self) -> int:
        """Tokens of the past, or the capacity of its buffers; 0 without one."""
        return 0 if self.past_key is None else self.past_key.shape[2]

    @property
    def kv_tokens(self) -> int:
        """Tokens of the present: past and new together, or the capacity of the buffers."""
        return self.past_tokens + (0 if self.past_lengths is not None else self.key.shape[2])


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendResult:
    """What a call of the op returns.

    Attributes:
        output: ``[batch, heads, q_tokens, v_features]``.
        weights: ``[batch, heads, q_tokens, kv_tokens]``; ``None``: not asked for.
        present_key: Past and new keys together, or the buffer with the new ones in it,
            ``[batch, kv_heads, kv_tokens, features]``; ``None`` without a past.
        present_value: ``[batch, kv_heads, kv_tokens, v_features]``; ``None`` without a past.
    """

    output: Tensor
    weights: Tensor | None = None
    present_key: Tensor | None = None
    present_value: Tensor | None = None

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As the op's schema returns them: ``[0]``, of its own memory, where there is none."""

        def filled(tensor: Tensor | None) -> Tensor:
            return self.output.new_empty(0) if tensor is None else tensor

        return (
            self.output,
            filled(self.weights),
            filled(self.present_key),
            filled(self.present_value),
        )


ARGUMENTS = tuple(field.name for field in fields(AttendCall))
"""Names of the op's arguments, in the order of its schema."""

RESULTS = tuple(field.name for field in fields(AttendResult))
"""Names of the op's results, in the order of its schema."""

_DEFAULTS = {
    field.name: field.default for field in fields(AttendCall) if field.default is not MISSING
}


def by_name(arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The op's arguments by name, in the order of its schema, what is left out at its default.

    They may be tensors, or nodes of a graph that stand for them.
    """
    given = {**_DEFAULTS, **dict(zip(ARGUMENTS, arguments, strict=False)), **named}
    return {name: given[name] for name in ARGUMENTS}
