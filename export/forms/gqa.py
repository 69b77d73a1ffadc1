"""Form ``gqa``: ONNX Runtime's ``com.microsoft.GroupQueryAttention``.

The op of decoders: keys and values of fewer heads than the queries, a cache that goes in and comes
out, a window and a softcap. It wants ``[batch, tokens, heads * features]`` and, for every
sequence, the index of its last key: ``total - 1``, though a total is accepted and reads one stale
slot. Here the index is computed, from the shapes or from the lengths of the past in a cache of
fixed capacity, so that no caller can get it wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causal_attn.attention.spec import AttentionSpec
from causal_attn.errors import UsageError
from causal_attn.export.forms.form import LONGEST_WINDOW, Form
from causal_attn.machine.provider import Provider

__all__ = ["GQA"]

_ATTRIBUTES = ("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size")

# ONNX Runtime's CPU kernel refuses several new tokens after a past for more than one sequence. A
# Scan hands it one sequence at a time, as views; inside, the heads run in parallel.
_CACHED = f"""
<domain: "causal_attn", opset_import: ["" : 23, "com.microsoft" : 1]>
CachedGroupQueryAttention <{", ".join(_ATTRIBUTES)}>
  (query, key, value, past_key, past_value, last, total) => (output, present_key, present_value)
{{
  zero = Constant <value_ints = [0]> ()
  output, present_key, present_value = Scan <num_scan_inputs = 5, body = attend_sequence (
      one_query, one_key, one_value, one_past_key, one_past_value
    ) => (one_output, one_present_key, one_present_value)
    {{
      queries = Unsqueeze (one_query, zero)
      keys = Unsqueeze (one_key, zero)
      values = Unsqueeze (one_value, zero)
      past_keys = Unsqueeze (one_past_key, zero)
      past_values = Unsqueeze (one_past_value, zero)
      outputs, present_keys, present_values = com.microsoft.GroupQueryAttention <
        num_heads: int = @num_heads, kv_num_heads: int = @kv_num_heads, scale: float = @scale,
        softcap: float = @softcap, local_window_size: int = @local_window_size
      > (queries, keys, values, past_keys, past_values, last, total)
      one_output = Squeeze (outputs, zero)
      one_present_key = Squeeze (present_keys, zero)
      one_present_value = Squeeze (present_values, zero)
    }}
  > (query, key, value, past_key, past_value)
}}
"""

# The buffers go straight into the op, which writes them in place where past and present are bound
# to one; only several new tokens of several sequences, no step of decoding, take the Scan.
_STATIC = f"""
<domain: "causal_attn", opset_import: ["" : 23, "com.microsoft" : 1]>
StaticGroupQueryAttention <{", ".join(_ATTRIBUTES)}>
  (query, key, value, past_key, past_value, past_lengths) => (output, present_key, present_value)
{{
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_int = 1> ()
  batch_and_tokens = Shape <start = 0, end = 2> (query)
  tokens = Shape <start = 1, end = 2> (query)
  lengths = Add (past_lengths, tokens)
  longest = ReduceMax <keepdims = 1> (lengths)
  totals = Cast <to = 6> (lengths)
  total = Cast <to = 6> (longest)
  small_one = Cast <to = 6> (one)
  last = Sub (totals, small_one)
  fewer = ReduceMin <keepdims = 0> (batch_and_tokens)
  several = Greater (fewer, one)
  output, present_key, present_value = If (several) <
    then_branch = one_by_one () => (outputs, present_keys, present_values) {{
      outputs, present_keys, present_values = Scan <num_scan_inputs = 6, body = attend_sequence (
          one_query, one_key, one_value, one_past_key, one_past_value, one_last
        ) => (one_output, one_present_key, one_present_value)
        {{
          queries = Unsqueeze (one_query, zero)
          keys = Unsqueeze (one_key, zero)
          values = Unsqueeze (one_value, zero)
          past_keys = Unsqueeze (one_past_key, zero)
          past_values = Unsqueeze (one_past_value, zero)
          lasts = Unsqueeze (one_last, zero)
          its_total = Add (lasts, small_one)
          its_output, its_present_key, its_present_value = com.microsoft.GroupQueryAttention <
            num_heads: int = @num_heads, kv_num_heads: int = @kv_num_heads, scale: float = @scale,
            softcap: float = @softcap, local_window_size: int = @local_window_size
          > (queries, keys, values, past_keys, past_values, lasts, its_total)
          one_output = Squeeze (its_output, zero)
          one_present_key = Squeeze (its_present_key, zero)
          one_present_value = Squeeze (its_present_value, zero)
        }}
      > (query, key, value, past_key, past_value, last)
    }},
    else_branch = at_once () => (all_outputs, all_present_keys, all_present_values) {{
      all_outputs, all_present_keys, all_present_values = com.microsoft.GroupQueryAttention <
        num_heads: int = @num_heads, kv_num_heads: int = @kv_num_heads, scale: float = @scale,
        softcap: float = @softcap, local_window_size: int = @local_window_size
      > (query, key, value, past_key, past_value, last, total)
    }}
  >
}}
"""


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
    if kv_lengths is not None:
        raise UsageError("form 'gqa' takes no `kv_lengths`.")
    if return_weights:
        raise UsageError("form 'gqa' never holds the weights: return_weights=False.")
    if past_lengths is not None and (past_key is None or past_value is None):
        raise UsageError("form 'gqa' needs a past beside `past_lengths`.")
    batch, heads, tokens, features = query.shape
    kv_heads, dtype = key.shape[1], query.dtype
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise UsageError("form 'gqa' needs fixed heads: the op has them as attributes.")
    past = 0 if past_key is None else past_key.shape[2]
    total_tokens = past + tokens if past_lengths is None else past
    # 0 and -1 are the op's own words for the default scale, no softcap and no window.
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "scale": float(scale or 0),
        "softcap": float(softcap or 0),
        # ONNX Runtime keeps 32 bits; a sequence has fewer tokens.
        "local_window_size": -1 if window is None else min(window, LONGEST_WINDOW),
    }
    flat = [_tokens_first(tensor) for tensor in (query, key, value)]
    ones = torch.ones(1, dtype=torch.int64, device=query.device)
    total = (ones * total_tokens).to(torch.int32)
    present = (batch, kv_heads, total_tokens, features)
    shapes = ((batch, tokens, heads * features), present, present)
    empty = query.new_empty(0)
    if past_key is not None and past_value is not None and past_lengths is not None:
        output, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
            "causal_attn::StaticGroupQueryAttention",
            [*flat, past_key, past_value, past_lengths],
            attributes,
            dtypes=(dtype, dtype, dtype),
            shapes=shapes,
            version=1,
        )
    elif past_key is not None and past_value is not None:
        output, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
            "causal_attn::CachedGroupQueryAttention",
            [*flat, past_key, past_value, total - 1, total],
            attributes,
            dtypes=(dtype, dtype, dtype),
            shapes=shapes,
            version=1,
        )
    else:
        output, _, _ = torch.onnx.ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            [*flat, None, None, (total - 1).expand(batch), total],
            attributes,
            dtypes=(dtype, dtype, dtype),
            shapes=shapes,
            version=1,
        )
        present_key = present_value = empty
    output = output.unflatten(2, (heads, features)).transpose(1, 2)
    return output, empty, present_key, present_value


def _tokens_first(tensor: Tensor) -> Tensor:
    """``[batch, heads, tokens, features]`` as ``[batch, tokens, heads * features]``."""
    return tensor.transpose(1, 2).flatten(2)


def _refuse(spec: AttentionSpec, provider: Provider) -> str | None:
    if spec.num_heads is None:
        return "form 'gqa' needs `num_heads` in the spec: the op has heads as an attribute."
    if spec.head_dim is None or spec.head_dim % 8:
        return (
            "form 'gqa' needs a `head_dim` in the spec that is a multiple of 8, as its kernels "
            f"do, got {spec.head_dim}."
        )
    if provider not in (Provider.CPU, Provider.CUDA):
        return f"form 'gqa' is an op of ONNX Runtime's own, which {provider} does not run."
    return None


GQA = Form(
    name="gqa",
    lower=_lower,
    opset=23,
    dtypes=frozenset({torch.float16, torch.float32}),
    weights=False,
    refuse=_refuse,
    functions=(_CACHED, _STATIC),
    static=True,
)
