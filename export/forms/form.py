"""What a form is: attention in terms of other ops, and where that is right.

The table of forms is `causal_attn.export.forms.table`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from causal_attn.attention.call import AttendCall, AttendResult
from causal_attn.attention.spec import AttentionSpec
from causal_attn.export.forms.demand import Demand, Need
from causal_attn.export.forms.graph_function import GraphFunction
from causal_attn.machine.provider import Provider

__all__ = ["EVERYWHERE", "LONGEST_WINDOW", "Form", "Lowering"]

EVERYWHERE = frozenset(Provider)

LONGEST_WINDOW = (1 << 31) - 1
"""That `GroupQueryAttention` takes as it is: it keeps 32 bits. A sequence has fewer tokens."""

Lowering = Callable[[AttendCall], AttendResult]
"""The op in terms of others. It is called only where `Form.lacks` finds nothing."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to write attention.

    Attributes:
        name: As on the command line and in the contract.
        lower: The op in terms of others.
        opset: The oldest that has what it needs; the default of an export.
        dtypes: Those it is right for.
        has: What it can do of that which not every form can.
        fixed_heads: Whether its op has the numbers of heads as attributes.
        features_multiple: Of which the features of a head must be a multiple; ``None``: they may
            be a dynamic dim too.
        providers: Those it runs on.
        elsewhere: Why it runs on no others, as a clause.
        finite_mask: Whether a kernel of ONNX Runtime adds a finite number where ``-inf`` is
            meant, so that the causal claim holds only under a bound on the scores.
        narrow: Why float16 is not among `dtypes`, as a sentence.
        functions: That `lower` calls; they are written into the graph in place of the calls.
    """

    name: str
    lower: Lowering
    opset: int
    dtypes: frozenset[torch.dtype]
    has: frozenset[Need] = frozenset()
    fixed_heads: bool = False
    features_multiple: int | None = None
    providers: frozenset[Provider] = EVERYWHERE
    elsewhere: str = ""
    finite_mask: bool = False
    narrow: str = ""
    functions: tuple[GraphFunction, ...] = ()

    def decompose(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`lower` with the schema of the op: an entry of torch's table of decompositions."""
        return self.lower(AttendCall.of(*arguments, **named)).tensors()

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
        if provider not in self.providers:
            return f"form {self.name!r} is not for {provider}: {self.elsewhere}."
        return (
            self.lacks(Demand.of_spec(spec, return_weights=return_weights))
            if spec is not None
            else None
        )

    def lacks(self, demand: Demand) -> str | None:
        """What `demand` asks for and this form has not, as a sentence; ``None``: nothing."""
        if missing := demand.needs - self.has:
            return f"form {self.name!r} {'; it '.join(sorted(missing))}."
        if self.fixed_heads and not demand.fixed_heads:
            return (
                f"form {self.name!r} needs fixed heads, `num_heads` of a spec: its op has them as "
                "attributes."
            )
        multiple = self.features_multiple
        if multiple is not None and (demand.features is None or demand.features % multiple):
            return (
                f"form {self.name!r} needs fixed features, `head_dim` of a spec, that are a "
                f"multiple of {multiple}, as its kernels do, got {demand.features}."
            )
        return None
