"""Which cases a benchmark runs: the standing grid, or one shape of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from causal_attn.bench.cases import Case, Mode
from causal_attn.errors import UsageError

__all__ = ["Plan", "Selection", "make_plan"]

PREFILL_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CACHED_TOKENS = (2048, 8192)
BATCHED_TOKENS = (128, 512)
MEMORY_TOKENS = (8192,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cases to time, and cases to measure memory on.

    Attributes:
        cases: In the order they are run in; short ones first keeps memory of long ones out of
            them.
        memory: Each is measured in a fresh process.
    """

    cases: tuple[Case, ...] = ()
    memory: tuple[Case, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What a user asks to be measured.

    Attributes:
        prefill: Run this part. If no part is asked for: all three, or, where a shape is given,
            prefill alone.
        decode: Run this part.
        memory: Run this part, on a prefill.
        tokens: Of the part that is run; for decode, tokens in the cache.
        batch: Sequences; default 1.
        heads: Query heads; default 16, for decode 32.
        kv_heads: Key/value heads; default `heads`, for decode a quarter of them.
        head_dim: Features; default 64, for decode 128.
        dtype: ``float32`` or ``float16``.

    Raises:
        UsageError: A shape was given for decode and another part at once, or `tokens` is empty.
    """

    prefill: bool = False
    decode: bool = False
    memory: bool = False
    tokens: Sequence[int] | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.has_shape and self.decode and (self.prefill or self.memory):
            raise UsageError(
                "`tokens`, `batch`, `heads`, `kv_heads` and `head_dim` must be given for decode "
                "or for prefill, got them for both. Run one part at a time."
            )
        if self.tokens is not None and not self.tokens:
            raise UsageError("`tokens` must name at least one length, got none.")

    @property
    def has_shape(self) -> bool:
        """Whether any size is given."""
        shape = (self.tokens, self.batch, self.heads, self.kv_heads, self.head_dim)
        return any(value is not None for value in shape)

    def cases(self, mode: Mode, lengths: Sequence[int], sequences: int = 1) -> tuple[Case, ...]:
        """One case a length.

        Args:
            mode: Of all of them.
            lengths: Where no `tokens` are given.
            sequences: Where no `batch` is given.

        Raises:
            UsageError: A size cannot be.
        """
        decoding = mode is Mode.DECODE
        heads = self.heads if self.heads is not None else (32 if decoding else 16)
        default_kv = max(1, heads // 4) if decoding else heads
        default_dim = 128 if decoding else 64
        return tuple(
            Case(
                mode=mode,
                batch=self.batch if self.batch is not None else sequences,
                heads=heads,
                kv_heads=self.kv_heads if self.kv_heads is not None else default_kv,
                head_dim=self.head_dim if self.head_dim is not None else default_dim,
                tokens=length,
                dtype=self.dtype,
            )
            for length in (self.tokens if self.tokens is not None else lengths)
        )


_EVERYTHING = Selection()


def make_plan(selection: Selection = _EVERYTHING) -> Plan:
    """The cases that `selection` asks for.

    Without a part or a shape, everything: prefill at ten lengths with 16 heads of 64, again with
    batch 8 at two of them, decode steps with 32 query and 8 key/value heads of 128 over 2,048 and
    8,192 cached tokens, and memory at 8,192 tokens.

    Raises:
        UsageError: A size cannot be.
    """
    given = selection.has_shape
    prefill, decode, memory = selection.prefill, selection.decode, selection.memory
    if not (prefill or decode or memory):
        prefill, decode, memory = True, not given, not given
    timed: tuple[Case, ...] = ()
    if prefill:
        timed += selection.cases(Mode.PREFILL, PREFILL_TOKENS)
    if prefill and not given:
        timed += selection.cases(Mode.PREFILL, BATCHED_TOKENS, 8)
    if decode:
        timed += selection.cases(Mode.DECODE, CACHED_TOKENS)
    held = selection.cases(Mode.PREFILL, MEMORY_TOKENS) if memory else ()
    return Plan(cases=timed, memory=held)
