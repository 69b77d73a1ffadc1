"""Which form a graph uses up to how many tokens, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from causal_attn.export.forms.form import Form

__all__ = ["Choice"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Forms in the order of the lengths that they are for.

    Attributes:
        forms: At least one, distinct.
        last: For all but the last of them, the most tokens it is used for; ascending.
        reason: JSON values for the contract: the rule and the figures; empty where the caller
            named the form.
    """

    forms: tuple[Form, ...]
    last: tuple[int, ...] = ()
    reason: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the contract calls it, such as ``attention+blocked``."""
        return "+".join(form.name for form in self.forms)

    def to_dict(self) -> dict[str, Any]:
        """The value of the contract's ``choice``; empty where the caller named the form."""
        if len(self.forms) == 1:
            return dict(self.reason)
        switch = [
            {"form": form.name, "last_tokens": last}
            for form, last in zip(self.forms, [*self.last, None], strict=True)
        ]
        return {**self.reason, "switch": switch}
