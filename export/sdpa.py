"""torch's ``scaled_dot_product_attention`` in a user's module, written so that no trap remains.

torch.onnx 2.13 writes it with a finite mask constant and a mean of v for empty rows below opset
23, keeps the scale of float64 in float32, and from opset 23 on hands it to kernels that add the
lowest finite number. Here a mask is a select of ``-inf``, a row that sees no key is zeros, and
scores and softmax are at least float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from causal_attn.errors import InputError

__all__ = ["SDPA", "lower_sdpa", "refuse_sdpa"]

SDPA = torch.ops.aten.scaled_dot_product_attention.default


def lower_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The op in terms of products, a select and a softmax.

    Args:
        query: ``[…, heads, q_tokens, features]``.
        key: ``[…, kv_heads, kv_tokens, features]``.
        value: ``[…, kv_heads, kv_tokens, v_features]``.
        attn_mask: bool (True: may be seen) or float (added), broadcast to the scores.
        dropout_p: Ignored: an exported graph infers.
        is_causal: Query ``i`` sees keys ``0 … i``, torch's upper-left alignment.
        scale: Default ``1 / sqrt(features)``.
        enable_gqa: Fewer key/value heads than query heads.
    """
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    # Tensors, not Python floats: see causal_attn.reference.
    if scale is None:
        width = torch.full((), query.shape[-1], dtype=query.dtype, device=query.device)
        scores = query @ key.transpose(-2, -1) / width.sqrt()
    else:
        factor = torch.full((), scale, dtype=query.dtype, device=query.device)
        scores = query @ key.transpose(-2, -1) * factor
    visible = None
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        visible = torch.arange(key.shape[-2], device=query.device)[None, :] <= rows
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.to(scores.dtype)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if attn_mask is not None:
        # Softmax makes NaN of a row that is -inf throughout; a causal row sees at least itself.
        hidden = scores == float("-inf")
        weights = weights.masked_fill(hidden, 0)
    return (weights @ value).to(dtype)


def refuse_sdpa(node: Node) -> None:
    """Refuse arguments that torch.export lets through and that mean something else in ONNX.

    Raises:
        InputError: Naming the argument of ``scaled_dot_product_attention``.
    """
    arguments = dict(zip(_PARAMETERS, node.args, strict=False)) | dict(node.kwargs)
    scale = arguments.get("scale")
    if scale is not None and not (isinstance(scale, int | float) and scale > 0):
        raise InputError(
            f"`scale` of scaled_dot_product_attention must be > 0, got {scale!r}: the square root "
            "that ONNX takes of it is NaN."
        )


_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
