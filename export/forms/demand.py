"""What an attention asks of the form that it is to be written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from torch.fx.experimental.symbolic_shapes import statically_known_true

from causal_attn.attention.call import AttendCall
from causal_attn.attention.spec import AttentionSpec, CacheKind

__all__ = ["Demand", "Need"]


class Need(StrEnum):
    """Something that not every form has; the value is what a form without it says of itself."""

    WEIGHTS = "never holds the weights: export with return_weights=False"
    WINDOW = "has no window: its op sees all of the past"
    STATIC_CACHE = (
        "writes no cache of fixed capacity: use form 'decomposed' or 'gqa', or cache='dynamic'"
    )
    PADDING = "takes no `kv_lengths`: use form 'decomposed'"
    SINKS = "has no `sinks`: use form 'decomposed' or 'gqa'"
    NARROW_VALUES = "takes no values whose features differ from those of the keys"


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What is known of an attention before it is written, from its spec or from a call of the op.

    Attributes:
        needs: What it cannot do without.
        fixed_heads: Whether the numbers of heads are numbers, not dynamic dims.
        features: Of one query head; ``None``: a dynamic dim.
    """

    needs: frozenset[Need]
    fixed_heads: bool
    features: int | None

    @classmethod
    def of_spec(cls, spec: AttentionSpec, *, return_weights: bool) -> Self:
        """That of the reference op."""
        asked = {
            Need.WEIGHTS: return_weights,
            Need.WINDOW: spec.window is not None,
            Need.STATIC_CACHE: spec.cache is CacheKind.STATIC,
        }
        return cls(
            needs=frozenset(need for need, wanted in asked.items() if wanted),
            fixed_heads=spec.num_heads is not None,
            features=spec.head_dim,
        )

    @classmethod
    def of_call(cls, call: AttendCall) -> Self:
        """That of one call, whose tensors may be traced."""
        features, v_features = call.query.shape[3], call.value.shape[3]
        asked = {
            Need.WEIGHTS: call.return_weights,
            Need.WINDOW: call.window is not None,
            Need.STATIC_CACHE: call.past_lengths is not None,
            Need.PADDING: call.kv_lengths is not None,
            Need.SINKS: call.sinks is not None,
            Need.NARROW_VALUES: not statically_known_true(features == v_features),
        }
        heads = (call.query.shape[1], call.key.shape[1])
        return cls(
            needs=frozenset(need for need, wanted in asked.items() if wanted),
            fixed_heads=all(isinstance(count, int) for count in heads),
            features=features if isinstance(features, int) else None,
        )
