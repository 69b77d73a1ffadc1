"""What is measured: one shape of attention, its arrays, and the work that it cannot avoid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import UsageError

__all__ = ["DTYPES", "Case", "Mode"]

DTYPES = ("float32", "float16")


class Mode(StrEnum):
    """Which part of a generation a case stands for."""

    PREFILL = "prefill"
    """`tokens` tokens attend to themselves and their past within the call."""
    DECODE = "decode"
    """One new token attends to a cache of `tokens` tokens and to itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One shape.

    Attributes:
        mode: See `Mode`.
        batch: Sequences.
        heads: Query heads.
        kv_heads: Key/value heads, a divisor of `heads`.
        head_dim: Features of a head.
        tokens: Tokens of a prefill, or tokens in the cache of a decode step.
        dtype: One of `DTYPES`.

    Raises:
        UsageError: A number is not an integer >= 1, `kv_heads` does not divide `heads`, or
            `dtype` is unknown.
    """

    mode: Mode
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "head_dim", "tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"`{name}` must be an integer >= 1, got {value!r}.")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"`kv_heads` must divide `heads`, got {self.kv_heads} for {self.heads} heads."
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"`dtype` must be one of {list(DTYPES)}, got {self.dtype!r}.")
        object.__setattr__(self, "mode", Mode(self.mode))

    @property
    def model(self) -> str:
        """What cases that run the same file share, in words: all but batch and tokens."""
        kv = "" if self.kv_heads == self.heads else f", {self.kv_heads} key/value heads"
        return f"{self.mode}, {self.heads} heads of {self.head_dim}{kv}, {self.dtype}"

    @property
    def family(self) -> str:
        """What cases of one table and one panel of the plot share, in words: all but tokens."""
        return f"{self.model}, batch {self.batch}"

    @property
    def title(self) -> str:
        """The case in words."""
        cached = " in the cache" if self.mode is Mode.DECODE else ""
        return f"{self.family}, {self.tokens} tokens{cached}"

    @property
    def q_tokens(self) -> int:
        """Tokens whose output a call computes."""
        return self.tokens if self.mode is Mode.PREFILL else 1

    @property
    def past_tokens(self) -> int:
        """Tokens that are in the cache before the call."""
        return 0 if self.mode is Mode.PREFILL else self.tokens

    @property
    def pairs(self) -> int:
        """Query and key pairs that one head of one sequence must score."""
        return self.q_tokens * self.past_tokens + self.q_tokens * (self.q_tokens + 1) // 2

    @property
    def flops(self) -> int:
        """Multiplications and additions of the two matrix products, over visible pairs only."""
        return 4 * self.batch * self.heads * self.pairs * self.head_dim

    @property
    def read_bytes(self) -> int:
        """Keys and values, each read once."""
        kv_tokens = self.past_tokens + self.q_tokens
        itemsize = np.dtype(self.dtype).itemsize
        return 2 * self.batch * self.kv_heads * kv_tokens * self.head_dim * itemsize

    @property
    def output_bytes(self) -> int:
        """What the output holds."""
        itemsize = np.dtype(self.dtype).itemsize
        return self.batch * self.heads * self.q_tokens * self.head_dim * itemsize

    def arrays(self, seed: int) -> dict[str, NDArray[Any]]:
        """Fresh inputs: the same in every process for one `seed`, all different from another.

        Returns:
            ``q`` ``[batch, heads, q_tokens, head_dim]``, ``k`` and ``v``
            ``[batch, kv_heads, q_tokens, head_dim]`` and, for a decode step, ``past_key`` and
            ``past_value`` ``[batch, kv_heads, past_tokens, head_dim]``.
        """
        random = np.random.default_rng([seed, self.tokens, self.batch])
        layout = {"q": (self.heads, self.q_tokens)}
        layout |= dict.fromkeys("kv", (self.kv_heads, self.q_tokens))
        if self.mode is Mode.DECODE:
            layout |= dict.fromkeys(("past_key", "past_value"), (self.kv_heads, self.tokens))
        return {
            name: random.standard_normal(
                (self.batch, heads, tokens, self.head_dim), np.float32
            ).astype(self.dtype, copy=False)
            for name, (heads, tokens) in layout.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"mode": str(self.mode)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Case:
        """What `to_dict` gave."""
        return cls(**values)
