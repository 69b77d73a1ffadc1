"""What figures were measured on: without it they say nothing."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

from causal_attn.machine.provider import Provider
from causal_attn.machine.wheels import installed_wheels, version_of

__all__ = ["describe_machine"]


def describe_machine(provider: Provider) -> dict[str, Any]:
    """Processor, cores, system, provider and versions, as JSON values."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "provider": str(provider),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "onnxruntime": next(iter(installed_wheels().values()), None),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
