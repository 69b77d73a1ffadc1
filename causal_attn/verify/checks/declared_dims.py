"""Whether a graph runs at other sizes of the dims that it declares as dynamic."""

from __future__ import annotations

from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Check
from causal_attn.verify.interface.runnable import Runnable

__all__ = ["check_declared_dims"]

_NAME = "declared dims run"


def check_declared_dims(ran: Runnable, provider: Provider) -> Check:
    """A dim that is declared without a size and runs at one only was frozen by its exporter.

    The end of a table, a largest length, is no such fault: every length below it runs.
    """
    detail = "; ".join(ran.faults) or "no dim that is declared as dynamic has one size only"
    return Check(name=_NAME, passed=not ran.faults, detail=detail, provider=str(provider))
