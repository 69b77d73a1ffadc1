"""Form ``attention``: one ONNX ``Attention`` node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causal_attn.attention.call import AttendCall, AttendResult
from causal_attn.export.forms.demand import Need
from causal_attn.export.forms.form import EVERYWHERE, Form
from causal_attn.machine.provider import Provider

__all__ = ["ATTENTION", "NARROW_ATTENTION"]

NARROW_ATTENTION = (
    "ONNX Runtime's Attention kernel keeps scores in float16 and masks with -65,504: scores "
    "further apart leak."
)

AFTER_SOFTMAX = 3
"""The value of ``qk_matmul_output_mode`` for which the fourth result is the weights."""


def _lower(call: AttendCall) -> AttendResult:
    """Opset 23, https://onnx.ai/onnx/operators/onnx__Attention.html."""
    attributes: dict[str, Any] = {"is_causal": 1}
    if call.scale is not None:
        attributes["scale"] = float(call.scale)
    if call.softcap is not None:
        attributes["softcap"] = float(call.softcap)
    if call.return_weights:
        attributes["qk_matmul_output_mode"] = AFTER_SOFTMAX
    inputs: list[Tensor | None] = [call.query, call.key, call.value]
    if call.past is not None:
        inputs += [None, *call.past]
    rows = tuple(call.query.shape[:3])
    batch, kv_heads, _, features = call.key.shape
    v_features, kv_tokens = call.value.shape[3], call.kv_tokens
    output, present_key, present_value, weights = torch.onnx.ops.symbolic_multi_out(
        "Attention",
        inputs,
        attributes,
        dtypes=(call.query.dtype,) * 4,
        shapes=(
            (*rows, v_features),
            (batch, kv_heads, kv_tokens, features),
            (batch, kv_heads, kv_tokens, v_features),
            (*rows, kv_tokens),
        ),
        version=23,
    )
    return AttendResult(
        output=output,
        weights=weights if call.return_weights else None,
        present_key=None if call.past is None else present_key,
        present_value=None if call.past is None else present_value,
    )


ATTENTION = Form(
    name="attention",
    lower=_lower,
    opset=23,
    dtypes=frozenset({torch.float32}),
    has=frozenset({Need.WEIGHTS, Need.NARROW_VALUES}),
    providers=EVERYWHERE - {Provider.OPENVINO},
    elsewhere="openvino has no Attention kernel",
    finite_mask=True,
    narrow=NARROW_ATTENTION,
)
