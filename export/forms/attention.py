"""Form ``attention``: one ONNX ``Attention`` node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causal_attn.attention.spec import AttentionSpec
from causal_attn.errors import UsageError
from causal_attn.export.forms.form import Form
from causal_attn.machine.provider import Provider

__all__ = ["ATTENTION", "NARROW_ATTENTION"]

NARROW_ATTENTION = (
    "ONNX Runtime's Attention kernel keeps scores in float16 and masks with -65,504: scores "
    "further apart leak."
)


def _lower(
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
    past_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Opset 23, https://onnx.ai/onnx/operators/onnx__Attention.html."""
    if past_lengths is not None:
        raise UsageError("form 'attention' takes no `past_lengths`.")
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
    inputs: list[Tensor | None] = [query, key, value]
    if past_key is not None and past_value is not None:
        inputs += [None, past_key, past_value]
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


def _refuse(spec: AttentionSpec, provider: Provider) -> str | None:
    if spec.window is not None:
        return "form 'attention' has no window: ONNX Attention sees all of the past."
    if provider is Provider.OPENVINO:
        return "form 'attention' does not run on openvino: it has no Attention kernel."
    return None


ATTENTION = Form(
    name="attention",
    lower=_lower,
    opset=23,
    dtypes=frozenset({torch.float32}),
    finite_mask=True,
    narrow=NARROW_ATTENTION,
    refuse=_refuse,
)
