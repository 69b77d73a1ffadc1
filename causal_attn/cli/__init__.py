"""The command line: one file a command, thin over the public API; `main` is the entry point.

Exit codes: 0 all checks passed, 1 a check failed, 2 wrong usage or unreadable input, 3 could not
decide, 130 interrupted. With ``--json``, JSON alone goes to stdout and everything else to stderr.
"""

from __future__ import annotations

from causal_attn.cli.app import main

__all__ = ["main"]
