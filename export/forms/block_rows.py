"""How many rows a block of queries has, whichever op attends inside the block."""

from __future__ import annotations

__all__ = ["BLOCK_ROWS"]

SHORT_ROWS, LONG_ROWS, SHORT_TOKENS = 64, 128, 512
"""Most rows of a block up to, and above, `SHORT_TOKENS` tokens.

Small blocks mask less; large ones keep the matrix product busy, which packs the keys anew for
every block. Ratio to torch SDPA, Zen 4, 16 heads of 64, float32:

- ``GroupQueryAttention``, two cores, 2 heads a step, with 64, 128 and 256 rows: 1.24, 1.23, 1.07
  at 256 tokens; 1.61, 1.52, 1.35 at 512; 1.22, 1.24, 1.10 at 1,024; 1.07, 1.11, 1.02 at 2,048;
  1.24, 1.25, 1.28 at 4,096.
- ``Attention``, one core, with 64 and 128 rows: 1.46, 1.29 at 256 tokens; 1.72, 1.62 at 512; 1.12,
  1.14 at 2,048; 1.00, 1.08 at 4,096. 256 rows are behind at every length.
"""

BLOCK_ROWS = f"""short_tokens = Constant <value_ints = [{SHORT_TOKENS}]> ()
  short_rows = Constant <value_ints = [{SHORT_ROWS}]> ()
  long_rows = Constant <value_ints = [{LONG_ROWS}]> ()
  is_short = LessOrEqual (tokens, short_tokens)
  most_rows = Where (is_short, short_rows, long_rows)
  last_token = Sub (tokens, one)
  full_blocks = Div (last_token, most_rows)
  blocks = Add (full_blocks, one)
  last_row = Div (last_token, blocks)
  rows = Add (last_row, one)
  padded_tokens = Mul (rows, blocks)"""
"""Nodes of an ONNX function that has ``tokens`` and ``one``, both ``[1]``: equal rows for all
blocks, ``ceil(tokens / blocks)``, since a Scan stacks results of one shape."""
