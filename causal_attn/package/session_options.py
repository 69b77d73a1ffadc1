"""The session options that a package or a caller may set by name.

ONNX Runtime takes any key and any value and ignores what it does not know, so that a misspelt
option does nothing without a word; others name files to read weights from or to write. So there is
one list of switches, and anything outside it is refused, by whoever takes options in.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SWITCHES", "refused_options"]

SWITCHES = frozenset(
    {
        "session.disable_prepacking",
        "session.force_spinning_stop",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        "session.set_denormal_as_zero",
        "session.use_deterministic_compute",
        "session.use_device_allocator_for_initializers",
        "session.use_env_allocators",
    }
)
"""ONNX Runtime's session config entries that are allowed; each is ``"0"`` or ``"1"``."""


def refused_options(entries: Mapping[str, str]) -> dict[str, str]:
    """Those of `entries` that are not in `SWITCHES`, or are neither ``"0"`` nor ``"1"``."""
    return {
        key: value
        for key, value in entries.items()
        if key not in SWITCHES or value not in ("0", "1")
    }
