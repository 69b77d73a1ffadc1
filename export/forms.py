"""How attention is written in the graph: one lowering of the op for each form, in one table.

A form is a torch function with the signature of ``causal_attn::attend`` that says the same with
other ops; ``torch.onnx.ops.symbolic_multi_out`` writes any ONNX op from there. A new form is one
such function and one row in `FORMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from causal_attn.errors import UsageError
from causal_attn.operator import decomposition
from causal_attn.provider import Provider
from causal_attn.spec import AttentionSpec

__all__ = ["FORMS", "NEWEST_OPSET", "Form", "choose_form", "require_form"]

Lowering = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]

NEWEST_OPSET = 25
"""ONNX Runtime 1.32 loads nothing newer."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to write attention.

    Attributes:
        name: As on the command line and in the contract.
        lower: The op in terms of others.
        opset: The oldest that has what it needs; the default of an export.
        dtypes: Those it is right for.
        finite_mask: Whether a kernel of ONNX Runtime adds a finite number where ``-inf`` is
            meant, so that the causal claim holds only under a bound on the scores.
    """

    name: str
    lower: Lowering
    opset: int
    dtypes: frozenset[torch.dtype]
    finite_mask: bool = False

    def refusal(
        self, spec: AttentionSpec | None, dtype: torch.dtype, provider: Provider, opset: int
    ) -> str | None:
        """Why this form cannot be used, as a sentence; ``None``: it can."""
        if opset < self.opset:
            return f"form {self.name!r} needs opset {self.opset} or newer, got {opset}."
        if dtype not in self.dtypes:
            reason = (
                " ONNX Runtime's kernel keeps scores in float16 and masks with -65,504: scores "
                "further apart leak."
                if dtype is torch.float16 and self.finite_mask
                else ""
            )
            return f"form {self.name!r} is not right for {dtype}.{reason}"
        if self.name == "attention" and spec is not None and spec.window is not None:
            return "form 'attention' has no window: ONNX Attention sees all of the past."
        if self.name == "attention" and provider is Provider.OPENVINO:
            return "form 'attention' does not run on openvino: it has no Attention kernel."
        return None


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    return_weights: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One ONNX ``Attention`` (opset 23, https://onnx.ai/onnx/operators/onnx__Attention.html)."""
    if kv_lengths is not None or window is not None:
        raise UsageError("form 'attention' takes neither `kv_lengths` nor a window.")
    batch, heads, q_tokens, _ = query.shape
    kv_heads, new_tokens, features = key.shape[1:]
    v_features = value.shape[3]
    past = 0 if past_key is None else past_key.shape[2]
    total = past + new_tokens
    attributes: dict[str, Any] = {"is_causal": 1}
    if scale is not None:
        attributes["scale"] = float(scale)
    if softcap is not None:
        attributes["softcap"] = float(softcap)
    if return_weights:
        # 3: what comes out of softmax.
        attributes["qk_matmul_output_mode"] = 3
    inputs = [query, key, value]
    if past_key is not None and past_value is not None:
        inputs += [None, past_key, past_value]  # type: ignore[list-item]
    dtype = query.dtype
    output, present_key, present_value, weights = torch.onnx.ops.symbolic_multi_out(
        "Attention",
        inputs,
        attributes,
        dtypes=(dtype, dtype, dtype, dtype),
        shapes=(
            (batch, heads, q_tokens, v_features),
            (batch, kv_heads, total, features),
            (batch, kv_heads, total, v_features),
            (batch, heads, q_tokens, total),
        ),
        version=23,
    )
    empty = query.new_empty(0)
    no_past = past_key is None
    return (
        output,
        weights if return_weights else empty,
        empty if no_past else present_key,
        empty if no_past else present_value,
    )


FORMS = {
    form.name: form
    for form in (
        Form(
            name="decomposed",
            lower=decomposition,
            opset=18,
            dtypes=frozenset({torch.float16, torch.float32, torch.float64}),
        ),
        Form(
            name="attention",
            lower=_attention,
            opset=23,
            dtypes=frozenset({torch.float32}),
            finite_mask=True,
        ),
    )
}


def require_form(name: str) -> Form:
    """The form called `name`.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    if name not in FORMS:
        raise UsageError(f"`form` must be one of {['auto', *FORMS]}, got {name!r}.")
    return FORMS[name]


def choose_form(
    name: str,
    spec: AttentionSpec | None,
    dtype: torch.dtype,
    provider: Provider,
    opset: int | None,
) -> tuple[Form, int]:
    """The form to use and the opset to write it at.

    ``auto`` takes the decomposed form: it is right for every dtype here and runs on every
    provider.

    Raises:
        UsageError: The form asked for cannot be used; the message says why.
    """
    form = require_form("decomposed" if name == "auto" else name)
    chosen = form.opset if opset is None else opset
    if not isinstance(chosen, int) or chosen > NEWEST_OPSET:
        raise UsageError(
            f"`opset` must be {form.opset} to {NEWEST_OPSET} for form {form.name!r}, "
            f"got {chosen!r}: ONNX Runtime 1.32 loads nothing newer."
        )
    if reason := form.refusal(spec, dtype, provider, chosen):
        raise UsageError(f"`form` must fit the export: {reason}")
    return form, chosen
