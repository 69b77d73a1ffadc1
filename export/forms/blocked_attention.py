"""Query blocks whose attention is one ONNX ``Attention`` node with an explicit mask of ``-inf``.

The number of heads may be dynamic, features may have any size, and those of values may differ from
those of keys. The keys and values that a block sees are copied for it, since the op has no end of
its own; its CPU kernel takes one head after the other through scores and softmax, while they are
in cache.

Blocks have equal rows, ``ceil(tokens / blocks)``, since a Scan stacks results of one shape: the
last may be short by less than `blocks` rows, which are added to its result and left out at the
end. Keys, values and results are copied by ``Gather``, not by ``Slice`` and ``Transpose``, since
of these only ``Gather`` uses all threads.
"""

from __future__ import annotations

from causal_attn.export.forms.block_rows import BLOCK_ROWS
from causal_attn.export.forms.graph_function import GraphFunction

__all__ = ["LEAST_HEADS", "UNLIMITED", "blocks_of_attention"]

SCORES = 1 << 19
"""Scores that a step may hold, 2 MiB: a step takes as many heads as fit.

On one Zen 4 core all 16 heads at once are 5 % behind 4 of them at 512 tokens, 20 % at 1,024: their
scores leave the cache before the second product reads them.
"""

LEAST_HEADS = 4
"""Query heads that a step has at least, for the kernel runs its heads in parallel: at best as many
as the machine has cores. More cost cache: on that core, 4 at once are 14 % slower than 2 at 4,096
tokens and 5 % at 8,192."""

UNLIMITED = 1 << 40
"""A window that no sequence fills."""


def blocks_of_attention(name: str, *, scaled: bool) -> GraphFunction:
    """The form as an ONNX function of whole keys and values, past and new.

    ``query [batch, heads, tokens, features]``, ``key [batch, kv_heads, kv_tokens, features]``,
    ``value [batch, kv_heads, kv_tokens, v_features]``; ``kv_tokens - tokens`` are the past. Heads
    never meet, so that the heads of all sequences of a batch form one axis.
    """
    attributes = ["window", "least_heads", "softcap"] + ["scale"] * scaled
    options = ["softcap: float = @softcap"] + ["scale: float = @scale"] * scaled
    text = f"""
<domain: "causal_attn", opset_import: ["" : 23]>
{name} <{", ".join(attributes)}> (query, key, value) => (output)
{{
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  heads_and_tokens = Constant <value_ints = [1, 2]> ()

  batch = Shape <start = 0, end = 1> (query)
  heads = Shape <start = 1, end = 2> (query)
  tokens = Shape <start = 2, end = 3> (query)
  features = Shape <start = 3, end = 4> (query)
  kv_heads = Shape <start = 1, end = 2> (key)
  kv_tokens = Shape <start = 2, end = 3> (key)
  v_features = Shape <start = 3, end = 4> (value)
  past = Sub (kv_tokens, tokens)
  group = Div (heads, kv_heads)
  all_kv_heads = Mul (batch, kv_heads)
  all_heads = Mul (batch, heads)

  {BLOCK_ROWS}

  all_scores = Constant <value_ints = [{SCORES}]> ()
  least_heads = Constant <value_int: int = @least_heads> ()
  row_scores = Mul (rows, kv_tokens)
  fitting_heads = Div (all_scores, row_scores)
  wanted_heads = Max (fitting_heads, least_heads)
  wanted = Div (wanted_heads, group)
  possible = Min (wanted, all_kv_heads)
  zero_scalar = Squeeze (zero)
  one_scalar = Squeeze (one)
  counted = Squeeze (all_kv_heads)
  below = Range (zero_scalar, counted, one_scalar)
  counts = Add (below, one)
  remainder = Mod (all_kv_heads, counts)
  divides = Equal (remainder, zero)
  enough = GreaterOrEqual (counts, possible)
  usable = And (divides, enough)
  usable_counts = Where (usable, counts, all_kv_heads)
  step_kv_heads = ReduceMin <keepdims = 1> (usable_counts)
  step_heads = Mul (step_kv_heads, group)
  head_steps = Div (all_kv_heads, step_kv_heads)

  steps = Mul (head_steps, blocks)
  steps_scalar = Squeeze (steps)
  step_row = Range (zero_scalar, steps_scalar, one_scalar)
  step = Unsqueeze (step_row, one)
  head_step = Div (step, blocks)
  block = Mod (step, blocks)
  head_from = Mul (head_step, step_heads)
  head_to = Add (head_from, step_heads)
  kv_head_from = Mul (head_step, step_kv_heads)
  kv_head_to = Add (kv_head_from, step_kv_heads)
  row_from = Mul (block, rows)
  row_end = Add (row_from, rows)
  row_to = Min (row_end, tokens)
  missing_rows = Sub (row_end, row_to)

  window = Constant <value_int: int = @window> ()
  longest = Add (past, padded_tokens)
  reach = Min (window, longest)
  beyond = Sub (reach, one)
  position = Add (past, row_from)
  first_seen = Sub (position, beyond)
  key_from = Max (first_seen, zero)
  key_to = Add (past, row_to)
  column_from = Sub (key_from, first_seen)
  column_to = Sub (key_to, first_seen)
  row_count = Sub (row_to, row_from)
  none = Mul (step, zero)
  query_from = Concat <axis = 1> (head_from, row_from)
  query_to = Concat <axis = 1> (head_to, row_to)
  past_from = Concat <axis = 1> (kv_head_from, key_from)
  past_to = Concat <axis = 1> (kv_head_to, key_to)
  mask_from = Concat <axis = 1> (none, column_from)
  mask_to = Concat <axis = 1> (row_count, column_to)
  padding = Concat <axis = 1> (none, none, none, none, none, none, missing_rows, none)

  columns = Add (rows, beyond)
  columns_scalar = Squeeze (columns)
  rows_scalar = Squeeze (rows)
  column = Range (zero_scalar, columns_scalar, one_scalar)
  row = Range (zero_scalar, rows_scalar, one_scalar)
  row_column = Unsqueeze (row, one)
  ahead = Sub (column, row_column)
  in_reach = GreaterOrEqual (ahead, zero)
  not_future = LessOrEqual (ahead, beyond)
  visible = And (in_reach, not_future)
  shown = Constant <value = float {{0.0}}> ()
  hidden = Constant <value = float {{-inf}}> ()
  mask = Where (visible, shown, hidden)
  mask_axes = Constant <value_ints = [0, 1]> ()

  all_keys = Mul (all_kv_heads, kv_tokens)
  all_keys_scalar = Squeeze (all_keys)
  numbers = Range (zero_scalar, all_keys_scalar, one_scalar)
  number_shape = Concat <axis = 0> (one, all_kv_heads, kv_tokens)
  key_number = Reshape (numbers, number_shape)
  query_shape = Concat <axis = 0> (one, all_heads, tokens, features)
  key_shape = Concat <axis = 0> (all_keys, features)
  value_shape = Concat <axis = 0> (all_keys, v_features)
  queries = Reshape (query, query_shape)
  keys = Reshape (key, key_shape)
  values = Reshape (value, value_shape)
  stacked = Scan <num_scan_inputs = 7, body = attend_block (
      int64[2] query_start, int64[2] query_end, int64[2] key_start, int64[2] key_end,
      int64[2] mask_start, int64[2] mask_end, int64[8] pads
    ) => (float[one_batch, step_heads_, rows_, v_features_] block_output)
    {{
      block_query = Slice (queries, query_start, query_end, heads_and_tokens)
      seen = Slice (key_number, key_start, key_end, heads_and_tokens)
      block_key = Gather (keys, seen)
      block_value = Gather (values, seen)
      block_mask = Slice (mask, mask_start, mask_end, mask_axes)
      attended = Attention <{", ".join(options)}> (block_query, block_key, block_value, block_mask)
      block_output = Pad (attended, pads)
    }}
  > (query_from, query_to, past_from, past_to, mask_from, mask_to, padding)

  step_rows = Mul (step_heads, rows)
  head_step_rows = Mul (step_rows, blocks)
  head_count = Squeeze (all_heads)
  head_row = Range (zero_scalar, head_count, one_scalar)
  head = Unsqueeze (head_row, one)
  head_in_steps = Div (head, step_heads)
  head_in_step = Mod (head, step_heads)
  steps_before = Mul (head_in_steps, head_step_rows)
  heads_before = Mul (head_in_step, rows)
  head_offset = Add (steps_before, heads_before)
  token_count = Squeeze (tokens)
  token = Range (zero_scalar, token_count, one_scalar)
  token_block = Div (token, rows)
  token_row = Mod (token, rows)
  blocks_before = Mul (token_block, step_rows)
  token_offset = Add (blocks_before, token_row)
  place = Add (head_offset, token_offset)
  stacked_shape = Constant <value_ints = [-1]> ()
  row_shape = Concat <axis = 0> (stacked_shape, v_features)
  stacked_rows = Reshape (stacked, row_shape)
  gathered = Gather (stacked_rows, place)
  output_shape = Concat <axis = 0> (batch, heads, tokens, v_features)
  output = Reshape (gathered, output_shape)
}}
"""
    return GraphFunction(text=text)
