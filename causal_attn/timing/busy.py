"""How busy the machine is with other things: what makes figures of a shared machine worthless."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["BUSY_SHARE", "busy_seconds"]

BUSY_SHARE = 0.1
"""Above this share of the cores, other processes show in the figures."""

_STAT = Path("/proc/stat")
_IDLE, _IOWAIT, _GUESTS = 3, 4, 8


def busy_seconds() -> float | None:
    """CPU seconds that all cores together have spent on anything since boot; Linux only.

    Time that the hypervisor gave to other machines is in it.
    """
    if not _STAT.exists():
        return None
    # Guest time, from the ninth figure on, is in user time already (proc_stat(5)).
    ticks = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:]][:_GUESTS]
    busy = sum(count for place, count in enumerate(ticks) if place not in (_IDLE, _IOWAIT))
    return busy / float(os.sysconf("SC_CLK_TCK"))
