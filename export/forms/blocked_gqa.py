"""Query blocks whose attention is ``com.microsoft.GroupQueryAttention`` over a shared cache.

All keys and values are handed to the op as a past that it does not grow: new keys and values of no
token ("shared KV"). The op then reads them where they are, only as far as `total_sequence_length`
says, and masks by itself: nothing is copied for a block but its queries. Two nested ``Scan`` walk
over some heads at a time, whose keys and values are views, and over blocks of queries.

ONNX Runtime reads the past in place since 1.31: 1.27 to 1.30 load the graph and end the process
when it runs, older ones refuse to load it.
"""

from __future__ import annotations

from causal_attn.export.forms.block_rows import BLOCK_ROWS
from causal_attn.export.forms.graph_function import GraphFunction

__all__ = ["OLDEST_ONNXRUNTIME", "blocks_of_gqa"]

OLDEST_ONNXRUNTIME = "1.31"

SCORES = 1 << 19
"""Scores of a block, 2 MiB, up to which all heads of a sequence are one step.

Few steps cost less in themselves: at 256 tokens all 16 heads at once take 0.89 of the time of 2 a
step. Larger scores leave the cache before the second product reads them: at 4,096 tokens 2 heads a
step take 0.89 of the time of all at once.
"""

# A window would be masked, not skipped: what no query of the block sees is cut off instead.
_WINDOW = """
      seen_key = Slice (step_key, key_start, key_end, token_axis)
      seen_value = Slice (step_value, key_start, key_end, token_axis)"""


def blocks_of_gqa(name: str, *, window: bool, stepped: bool) -> GraphFunction:
    """The form as an ONNX function, for ``query [batch, heads, tokens, features]``.

    ``key`` and ``value`` are ``[batch, kv_heads, kv_tokens, features]``, past and new;
    ``kv_tokens - tokens`` are the past. The attributes ``num_heads`` and ``kv_num_heads`` are
    those of a sequence, ``step_num_heads`` and ``step_kv_num_heads`` divisors of them in the same
    ratio: heads never meet, so that the heads of all sequences of a batch form one axis.

    Blocks have equal rows, ``ceil(tokens / blocks)``, since a Scan stacks results of one shape:
    the last begins early enough to be full, and what it computes again is left out at the end.

    The sink of minus infinity adds exp(-inf) = 0 to the denominator of softmax. It is there
    because the op has two kernels and with a sink takes the one that is faster on blocks: scores
    of all keys at once, against tiles of keys that are rescaled one after another. Ratio to torch
    SDPA as above, 128 rows, all heads a step: 1.33 against 1.22 at 1,024 tokens, 1.11 against 0.93
    at 2,048, 1.05 against 0.97 at 4,096.

    Args:
        name: Of the function.
        window: Whether it has the attribute ``local_window_size``, at least 1.
        stepped: Whether it has ``step_num_heads`` and ``step_kv_num_heads``, which are a step
            where the scores of all heads are more than `SCORES`.
    """
    attributes = ["num_heads", "kv_num_heads", "scale", "softcap"]
    attributes += ["local_window_size"] * window
    attributes += ["step_num_heads", "step_kv_num_heads"] * stepped
    reach = (
        "reach = Constant <value_int: int = @local_window_size> ()"
        if window
        else "reach = Add (past, tokens)"
    )
    at_once = _scan("at_once", "", window=window)
    stacked = f"stacked = {at_once}"
    heads_of_a_step = """step_heads = Identity (heads)
  step_kv_heads = Identity (kv_heads)"""
    if stepped:
        stacked = f"""stacked = If (fits) <
    then_branch = all_heads_at_once () => (at_once) {{ at_once = {at_once} }},
    else_branch = some_heads_a_step () => (in_steps) {{
      in_steps = {_scan("in_steps", "step_", window=window)}
    }}
  >"""
        heads_of_a_step = f"""row_scores = Mul (rows, kv_tokens)
  scores = Mul (row_scores, heads)
  most_scores = Constant <value_ints = [{SCORES}]> ()
  fits = LessOrEqual (scores, most_scores)
  step_num_heads = Constant <value_int: int = @step_num_heads> ()
  step_kv_num_heads = Constant <value_int: int = @step_kv_num_heads> ()
  some_heads = Reshape (step_num_heads, rest)
  some_kv_heads = Reshape (step_kv_num_heads, rest)
  step_heads = Where (fits, heads, some_heads)
  step_kv_heads = Where (fits, kv_heads, some_kv_heads)"""
    text = f"""
<domain: "causal_attn", opset_import: ["" : 23, "com.microsoft" : 1]>
{name} <{", ".join(attributes)}> (query, key, value) => (output)
{{
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  rest = Constant <value_ints = [-1]> ()
  zero_scalar = Squeeze (zero)
  one_scalar = Squeeze (one)
  token_axis = Constant <value_ints = [2]> ()

  query_shape = Shape (query)
  batch_and_heads = Shape <start = 0, end = 2> (query)
  tokens = Shape <start = 2, end = 3> (query)
  features = Shape <start = 3, end = 4> (query)
  kv_tokens = Shape <start = 2, end = 3> (key)
  past = Sub (kv_tokens, tokens)
  all_heads = ReduceProd <keepdims = 1> (batch_and_heads)
  num_heads = Constant <value_int: int = @num_heads> ()
  kv_num_heads = Constant <value_int: int = @kv_num_heads> ()
  heads = Reshape (num_heads, rest)
  kv_heads = Reshape (kv_num_heads, rest)

  {BLOCK_ROWS}
  {heads_of_a_step}

  blocks_scalar = Squeeze (blocks)
  block_row = Range (zero_scalar, blocks_scalar, one_scalar)
  block = Unsqueeze (block_row, one)
  even_row = Mul (block, rows)
  last_from = Sub (tokens, rows)
  row_from = Min (even_row, last_from)
  row_to = Add (row_from, rows)
  {reach}
  position = Add (past, row_from)
  beyond = Sub (reach, one)
  first_seen = Sub (position, beyond)
  key_from = Max (first_seen, zero)
  key_to = Add (past, row_to)
  keys = Sub (key_to, key_from)
  total = Cast <to = 6> (keys)
  last_key = Sub (keys, one)
  last = Cast <to = 6> (last_key)

  minus_infinity = Constant <value = float[1] {{-inf}}> ()
  sink = Expand (minus_infinity, step_heads)
  width = Mul (step_heads, features)
  kv_width = Mul (step_kv_heads, features)
  no_tokens_shape = Concat <axis = 0> (one, zero, kv_width)
  no_tokens = ConstantOfShape (no_tokens_shape)
  block_shape = Concat <axis = 0> (one, rows, width)
  step_query_shape = Concat <axis = 0> (rest, step_heads, tokens, features)
  step_key_shape = Concat <axis = 0> (rest, one, step_kv_heads, kv_tokens, features)
  queries = Reshape (query, step_query_shape)
  all_keys = Reshape (key, step_key_shape)
  all_values = Reshape (value, step_key_shape)
  {stacked}

  step_rows = Mul (padded_tokens, step_heads)
  head_count = Squeeze (all_heads)
  head_row = Range (zero_scalar, head_count, one_scalar)
  head = Unsqueeze (head_row, one)
  head_step = Div (head, step_heads)
  head_in_step = Mod (head, step_heads)
  steps_before = Mul (head_step, step_rows)
  head_offset = Add (steps_before, head_in_step)
  token_count = Squeeze (tokens)
  token = Range (zero_scalar, token_count, one_scalar)
  token_block = Div (token, rows)
  block_start = Mul (token_block, rows)
  block_from = Min (block_start, last_from)
  token_row = Sub (token, block_from)
  stacked_token = Add (block_start, token_row)
  token_offset = Mul (stacked_token, step_heads)
  place = Add (head_offset, token_offset)
  row_shape = Concat <axis = 0> (rest, features)
  stacked_rows = Reshape (stacked, row_shape)
  gathered = Gather (stacked_rows, place)
  output = Reshape (gathered, query_shape)
}}
"""
    return GraphFunction(text=text, onnxruntime=OLDEST_ONNXRUNTIME)


def _scan(name: str, prefix: str, *, window: bool) -> str:
    """The loops over heads and blocks, for ``<prefix>num_heads`` heads a step."""
    options = [
        f"num_heads: int = @{prefix}num_heads",
        f"kv_num_heads: int = @{prefix}kv_num_heads",
    ]
    options += ["scale: float = @scale", "softcap: float = @softcap"]
    options += ["local_window_size: int = @local_window_size"] * window
    seen = "seen" if window else "step"
    return f"""Scan <num_scan_inputs = 3, body = {name}_heads (step_query, step_key, step_value)
    => ({name}_output)
  {{
    {name}_output = Scan <num_scan_inputs = 6, body = {name}_block (
        int64[1] row_start, int64[1] row_end, int64[1] key_start, int64[1] key_end,
        int32[1] block_last, int32[1] block_total
      ) => (block_output)
    {{
      heads_first = Slice (step_query, row_start, row_end, one)
      rows_first = Transpose <perm = [1, 0, 2]> (heads_first)
      block_query = Reshape (rows_first, block_shape){_WINDOW if window else ""}
      block_output = com.microsoft.GroupQueryAttention <{", ".join(options)}> (
        block_query, no_tokens, no_tokens, {seen}_key, {seen}_value, block_last, block_total,
        , , , , sink
      )
    }}> (row_from, row_to, key_from, key_to, last, total)
  }}> (queries, all_keys, all_values)"""
