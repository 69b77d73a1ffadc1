"""How attention is written in the graph: one lowering of the op for each form, in one table.

A form is a function from a call of the op to its results, in torch that says the same with other
ops; ``torch.onnx.ops.symbolic_multi_out`` writes any ONNX op from there. A new form is one such
function, in a file of its own beside what the form can do, and one entry in `FORMS`.
"""

from __future__ import annotations

import torch

from causal_attn.attention.spec import AttentionSpec
from causal_attn.errors import UsageError
from causal_attn.export.forms.attention import ATTENTION
from causal_attn.export.forms.blocked import BLOCKED
from causal_attn.export.forms.decomposed import DECOMPOSED
from causal_attn.export.forms.form import Form
from causal_attn.export.forms.gqa import GQA
from causal_attn.machine.provider import Provider

__all__ = ["FORMS", "NEWEST_OPSET", "Form", "choose_form", "require_form"]

NEWEST_OPSET = 25
"""ONNX Runtime 1.32 loads nothing newer."""

FORMS = {form.name: form for form in (DECOMPOSED, ATTENTION, GQA, BLOCKED)}


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
    return_weights: bool = False,
) -> tuple[Form, int]:
    """The form called `name` and the opset to write it at.

    Raises:
        UsageError: The form asked for cannot be used; the message says why.
    """
    form = require_form(name)
    chosen = form.opset if opset is None else opset
    if not isinstance(chosen, int) or chosen > NEWEST_OPSET:
        raise UsageError(
            f"`opset` must be {form.opset} to {NEWEST_OPSET} for form {form.name!r}, "
            f"got {chosen!r}: ONNX Runtime 1.32 loads nothing newer."
        )
    weights = return_weights and spec is not None
    if reason := form.refusal(spec, dtype, provider, chosen, return_weights=weights):
        raise UsageError(f"`form` must fit the export: {reason}")
    return form, chosen
