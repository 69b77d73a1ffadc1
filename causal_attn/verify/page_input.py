"""What the HTML page reads of a report: any object with these attributes will do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from causal_attn.certificate import Certificate
from causal_attn.provider import Provider

__all__ = ["LeakInput", "ReportInput", "VariantInput"]


class LeakInput(Protocol):
    @property
    def output(self) -> str: ...
    @property
    def query(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def past(self) -> int: ...
    @property
    def path(self) -> tuple[str, ...]: ...


class VariantInput(Protocol):
    @property
    def variant(self) -> str: ...
    @property
    def provider(self) -> Provider: ...
    @property
    def certificate(self) -> Certificate: ...
    @property
    def visibility(self) -> Mapping[str, NDArray[np.bool_]]: ...
    @property
    def leak(self) -> LeakInput | None: ...
    @property
    def placement(self) -> Mapping[str, int]: ...
    @property
    def not_checked(self) -> tuple[str, ...]: ...


class ReportInput(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def variants(self) -> tuple[VariantInput, ...]: ...
    @property
    def skipped(self) -> Mapping[str, str]: ...
    @property
    def exit_code(self) -> int: ...
