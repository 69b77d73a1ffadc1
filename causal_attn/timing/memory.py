"""How much resident memory a call adds at its peak, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["added_peak_bytes", "resident_bytes"]

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def added_peak_bytes(call: Callable[[], Any]) -> int:
    """Peak resident bytes while `call` ran, beyond those resident before it.

    On Linux the kernel's peak is set back first. Elsewhere the peak is that of the whole process,
    so that only growth beyond everything before shows: call it in a fresh process.
    """
    if _RESET.exists():
        # 5 sets the peak back to what is resident now (proc_pid_clear_refs(5)).
        _RESET.write_text("5")
        before = _linux_bytes("VmRSS")
        call()
        return max(0, _linux_bytes("VmHWM") - before)
    before = _process_peak()
    call()
    return max(0, _process_peak() - before)


def resident_bytes() -> int:
    """Resident memory of this process now; 0 where Linux does not say."""
    return _linux_bytes("VmRSS") if _STATUS.exists() else 0


def _linux_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def _process_peak() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
