"""How much memory this machine has."""

from __future__ import annotations

import os

__all__ = ["machine_bytes"]


def machine_bytes() -> int:
    """Physical memory; 4 EiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 1 << 62
