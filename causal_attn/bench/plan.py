"""Which cases a benchmark runs: the standing grid, or one shape of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from causal_attn.bench.cases import Case, Mode
from causal_attn.errors import UsageError

__all__ = ["Plan", "make_plan"]

PREFILL_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CACHED_TOKENS = (2048, 8192)
BATCHED_TOKENS = (128, 512)
MEMORY_TOKENS = (8192,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cases to time, and cases to measure memory on."""

    cases: tuple[Case, ...]
    memory: tuple[Case, ...]


def make_plan(
    *,
    prefill: bool = False,
    decode: bool = False,
    memory: bool = False,
    tokens: Sequence[int] | None = None,
    batch: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str = "float32",
) -> Plan:
    """Choose cases.

    Without arguments, everything: prefill at ten lengths with 16 heads of 64, again with batch 8
    at two of them, decode steps with 32 query and 8 key/value heads of 128 over 2,048 and 8,192
    cached tokens, and memory at 8,192 tokens.

    Args:
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
        UsageError: A shape was given for decode and another part at once, or cannot be.
    """
    shape = (tokens, batch, heads, kv_heads, head_dim)
    given = any(value is not None for value in shape)
    everything = not (prefill or decode or memory)
    if everything:
        prefill, decode, memory = True, not given, not given
    if given and decode and (prefill or memory):
        raise UsageError(
            "`tokens`, `batch`, `heads`, `kv_heads` and `head_dim` must be given for decode or "
            "for prefill, got them for both. Run one part at a time."
        )
    if tokens is not None and not tokens:
        raise UsageError("`tokens` must name at least one length, got none.")

    def cases(mode: Mode, lengths: Sequence[int], sequences: int = 1) -> tuple[Case, ...]:
        decoding = mode is Mode.DECODE
        query_heads = heads if heads is not None else (32 if decoding else 16)
        default_kv = max(1, query_heads // 4) if decoding else query_heads
        return tuple(
            Case(
                mode=mode,
                batch=batch if batch is not None else sequences,
                heads=query_heads,
                kv_heads=kv_heads if kv_heads is not None else default_kv,
                head_dim=head_dim if head_dim is not None else (128 if decoding else 64),
                tokens=length,
                dtype=dtype,
            )
            for length in (tokens if tokens is not None else lengths)
        )

    timed: tuple[Case, ...] = ()
    if prefill:
        timed += cases(Mode.PREFILL, PREFILL_TOKENS)
    if prefill and not given:
        timed += cases(Mode.PREFILL, BATCHED_TOKENS, 8)
    if decode:
        timed += cases(Mode.DECODE, CACHED_TOKENS)
    return Plan(cases=timed, memory=cases(Mode.PREFILL, MEMORY_TOKENS) if memory else ())
