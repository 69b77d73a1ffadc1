"""What a form is: a lowering of ``causal_attn::attend``, and where it may be used.

The table of forms is `causal_attn.export.forms.table`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.machine.provider import Provider

__all__ = ["LONGEST_WINDOW", "Form", "Lowering", "Refusal", "nothing"]

LONGEST_WINDOW = (1 << 31) - 1
"""That `GroupQueryAttention` takes as it is."""

Lowering = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
"""A function with the arguments and results of `causal_attn.attention.operator.attend`."""

Refusal = Callable[[AttentionSpec, Provider], str | None]
"""Why a spec cannot be written on a provider, as a sentence; ``None``: it can."""


def nothing(spec: AttentionSpec, provider: Provider) -> None:
    """Refuses nothing."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to write attention.

    Attributes:
        name: As on the command line and in the contract.
        lower: The op in terms of others.
        opset: The oldest that has what it needs; the default of an export.
        dtypes: Those it is right for.
        weights: Whether it can return the weights.
        finite_mask: Whether a kernel of ONNX Runtime adds a finite number where ``-inf`` is
            meant, so that the causal claim holds only under a bound on the scores.
        narrow: Why float16 is not among `dtypes`, as a sentence.
        refuse: What of a spec it cannot write, and on which providers.
        functions: ONNX functions, as text, that `lower` calls in the domain ``causal_attn``; they
            are written into the graph in place of the calls.
        static: Whether it can write into a cache of fixed capacity.
    """

    name: str
    lower: Lowering
    opset: int
    dtypes: frozenset[torch.dtype]
    weights: bool = True
    finite_mask: bool = False
    narrow: str = ""
    refuse: Refusal = nothing
    functions: tuple[str, ...] = ()
    static: bool = False

    def refusal(
        self,
        spec: AttentionSpec | None,
        dtype: torch.dtype,
        provider: Provider,
        opset: int,
        *,
        return_weights: bool = False,
    ) -> str | None:
        """Why this form cannot be used, as a sentence; ``None``: it can.

        Args:
            spec: The attention; ``None`` for a module, whose own calls of the op decide when the
                graph is written.
            dtype: Of the tensors.
            provider: Where the graph is to run.
            opset: Of the graph.
            return_weights: Whether the weights are wanted.
        """
        if opset < self.opset:
            return f"form {self.name!r} needs opset {self.opset} or newer, got {opset}."
        if dtype not in self.dtypes:
            reason = f" {self.narrow}" if dtype is torch.float16 and self.narrow else ""
            return f"form {self.name!r} is not right for {dtype}.{reason}"
        if return_weights and not self.weights:
            return f"form {self.name!r} never holds the weights: export with return_weights=False."
        if spec is None:
            return None
        if spec.cache is CacheKind.STATIC and not self.static:
            return (
                f"form {self.name!r} writes no cache of fixed capacity: use form 'decomposed' or "
                "'gqa', or cache='dynamic'."
            )
        return self.refuse(spec, provider)
