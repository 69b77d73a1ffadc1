"""`causal-attn bench`: our packages against torch, in time, in memory, and against the machine.

`make_plan` chooses the cases of a `Selection`, and `run_bench` measures them by `Settings`;
`causal_attn.bench.table` and `causal_attn.bench.plot` show the report. Importing this imports no
torch: every system runs in a process of its own.
"""

from __future__ import annotations

from causal_attn.bench.cases import Case, Mode
from causal_attn.bench.driver import run_bench
from causal_attn.bench.plan import Plan, Selection, make_plan
from causal_attn.bench.report import Report
from causal_attn.bench.settings import Settings
from causal_attn.bench.systems import FORM_SYSTEMS, SYSTEMS

__all__ = [
    "FORM_SYSTEMS",
    "SYSTEMS",
    "Case",
    "Mode",
    "Plan",
    "Report",
    "Selection",
    "Settings",
    "make_plan",
    "run_bench",
]
