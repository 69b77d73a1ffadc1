"""Form ``gqa``: ONNX Runtime's ``com.microsoft.GroupQueryAttention``.

The op of decoders: keys and values of fewer heads than the queries, a cache that goes in and comes
out, a window, a softcap and sinks. It wants ``[batch, tokens, heads * features]`` and, for every
sequence, the index of its last key: ``total - 1``, though a total is accepted and reads one stale
slot. Here the index is computed, from the shapes or from the lengths of the past in a cache of
fixed capacity, so that no caller can get it wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causal_attn.attention.call import AttendCall, AttendResult
from causal_attn.export.forms.demand import Need
from causal_attn.export.forms.form import LONGEST_WINDOW, Form
from causal_attn.export.forms.graph_function import GraphFunction
from causal_attn.machine.provider import Provider

__all__ = ["GQA"]

_ATTRIBUTES = ("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size")
_AS_INPUT = ", sinks"
_TO_THE_OP = ", , , , , sinks"
"""After the total: no tables of angles, no positions and no bias come before the sinks."""


def _cached(*, sinks: bool) -> GraphFunction:
    """A cache that grows.

    ONNX Runtime's CPU kernel refuses several new tokens after a past for more than one sequence.
    A Scan hands it one sequence at a time, as views; inside, the heads run in parallel.
    """
    name, given, read = _parts("Cached", sinks)
    text = f"""
<domain: "causal_attn", opset_import: ["" : 23, "com.microsoft" : 1]>
{name} <{", ".join(_ATTRIBUTES)}>
  (query, key, value, past_key, past_value, last, total{given})
  => (output, present_key, present_value)
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
      > (queries, keys, values, past_keys, past_values, last, total{read})
      one_output = Squeeze (outputs, zero)
      one_present_key = Squeeze (present_keys, zero)
      one_present_value = Squeeze (present_values, zero)
    }}
  > (query, key, value, past_key, past_value)
}}
"""
    return GraphFunction(text=text)


def _static(*, sinks: bool) -> GraphFunction:
    """A cache of fixed capacity.

    The buffers go straight into the op, which writes them in place where past and present are
    bound to one; only several new tokens of several sequences, no step of decoding, take the Scan.
    """
    name, given, read = _parts("Static", sinks)
    text = f"""
<domain: "causal_attn", opset_import: ["" : 23, "com.microsoft" : 1]>
{name} <{", ".join(_ATTRIBUTES)}>
  (query, key, value, past_key, past_value, past_lengths{given})
  => (output, present_key, present_value)
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
          > (queries, keys, values, past_keys, past_values, lasts, its_total{read})
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
      > (query, key, value, past_key, past_value, last, total{read})
    }}
  >
}}
"""
    return GraphFunction(text=text)


def _parts(kind: str, sinks: bool) -> tuple[str, str, str]:
    """Name of a function, and how sinks stand among its inputs and among those of the op."""
    name = f"{kind}{'Sink' if sinks else ''}GroupQueryAttention"
    return name, _AS_INPUT if sinks else "", _TO_THE_OP if sinks else ""


def _lower(call: AttendCall) -> AttendResult:
    batch, heads, tokens, features = call.query.shape
    kv_heads, kv_tokens = call.key.shape[1], call.kv_tokens
    # 0 and -1 are the op's own words for the default scale, no softcap and no window.
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "scale": float(call.scale or 0),
        "softcap": float(call.softcap or 0),
        "local_window_size": -1 if call.window is None else min(call.window, LONGEST_WINDOW),
    }
    inputs: list[Tensor | None] = [
        _tokens_first(tensor) for tensor in (call.query, call.key, call.value)
    ]
    ones = torch.ones(1, dtype=torch.int64, device=call.query.device)
    total = (ones * kv_tokens).to(torch.int32)
    if call.past is None:
        name = "com.microsoft::GroupQueryAttention"
        inputs += [None, None, (total - 1).expand(batch), total]
        inputs += [None] * 4 if call.sinks is not None else []
    elif call.past_lengths is None:
        name = f"causal_attn::{_parts('Cached', call.sinks is not None)[0]}"
        inputs += [*call.past, total - 1, total]
    else:
        name = f"causal_attn::{_parts('Static', call.sinks is not None)[0]}"
        inputs += [*call.past, call.past_lengths]
    if call.sinks is not None:
        inputs.append(call.sinks)
    present = (batch, kv_heads, kv_tokens, features)
    output, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
        name,
        inputs,
        attributes,
        dtypes=(call.query.dtype,) * 3,
        shapes=((batch, tokens, heads * features), present, present),
        version=1,
    )
    return AttendResult(
        output=output.unflatten(2, (heads, features)).transpose(1, 2),
        present_key=None if call.past is None else present_key,
        present_value=None if call.past is None else present_value,
    )


def _tokens_first(tensor: Tensor) -> Tensor:
    """``[batch, heads, tokens, features]`` as ``[batch, tokens, heads * features]``."""
    return tensor.transpose(1, 2).flatten(2)


GQA = Form(
    name="gqa",
    lower=_lower,
    opset=23,
    dtypes=frozenset({torch.float16, torch.float32}),
    has=frozenset({Need.WINDOW, Need.STATIC_CACHE, Need.SINKS}),
    fixed_heads=True,
    features_multiple=8,
    providers=frozenset({Provider.CPU, Provider.CUDA, Provider.WEBGPU}),
    elsewhere="its op is ONNX Runtime's own, with kernels for cpu, cuda and webgpu",
    functions=tuple(made(sinks=sinks) for made in (_cached, _static) for sinks in (False, True)),
)
