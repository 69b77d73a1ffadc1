"""Specs that hypothesis draws."""

from __future__ import annotations

from hypothesis import strategies as st

from causal_attn.attention.spec import AttentionSpec, CacheKind

__all__ = ["specs"]

sizes = st.none() | st.integers(1, 1 << 40)
factors = st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@st.composite
def specs(draw: st.DrawFn) -> AttentionSpec:
    num_kv_heads = draw(sizes)
    num_heads = draw(sizes)
    if num_kv_heads is not None:
        num_heads = num_kv_heads * draw(st.integers(1, 64))
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=draw(sizes),
        scale=draw(factors),
        window=draw(sizes),
        softcap=draw(factors),
        cache=draw(st.sampled_from(CacheKind)),
    )
