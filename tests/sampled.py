"""A sample of slow cases, another one each day, so that all of them are run within a few days.

``CAUSAL_ATTN_SEED=N`` repeats the sample of a seed, which pytest prints first;
``CAUSAL_ATTN_SEED=all`` runs every case.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import date

__all__ = ["SEED", "sampled"]

SEED = os.environ.get("CAUSAL_ATTN_SEED", str(date.today().toordinal()))


def sampled(cases: Sequence[str], count: int, *always: str) -> list[str]:
    """`always`, and `count` others of `cases`, in their order."""
    if SEED == "all":
        return list(cases)
    others = [case for case in cases if case not in always]
    chosen = {*always, *random.Random(SEED).sample(others, min(count, len(others)))}
    return [case for case in cases if case in chosen]
