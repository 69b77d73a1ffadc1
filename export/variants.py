"""The variants of a package: graphs that are equal are written and checked once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from causal_attn.export.capture.captured import Captured
from causal_attn.export.choose.choice import Choice
from causal_attn.export.write.certified import certify_graph
from causal_attn.export.write.graph_file import contract_choice, write_graph
from causal_attn.machine.provider import Provider
from causal_attn.package import VariantSource
from causal_attn.package.certificate import Certificate
from causal_attn.package.contract import Contract

__all__ = ["Variants"]

Key = tuple[str, tuple[int, ...], int]
"""What tells graphs of one capture apart: the names of their forms, where they switch, the
opset."""


class Variants:
    """Collects a source for every variant, in `sources`."""

    def __init__(
        self,
        captured: Captured,
        folder: Path,
        lengths: Sequence[int],
        on_step: Callable[[str], None],
    ) -> None:
        """Write graphs of `captured` into `folder`, and check them at `lengths` tokens."""
        self.sources: list[VariantSource] = []
        self._captured = captured
        self._folder = folder
        self._lengths = lengths
        self._on_step = on_step
        self._written: dict[Key, tuple[Path, Contract]] = {}
        self._certificates: dict[tuple[Key, Provider], Certificate] = {}

    def add(self, provider: Provider, judge: Provider, choice: Choice, opset: int) -> None:
        """Write the graph of `choice` for `provider`, checked on `judge`.

        Raises:
            CaptureError: The graph cannot be written.
            CheckError: It does not pass every check.
        """
        key = (choice.name, choice.last, opset)
        if key not in self._written:
            self._on_step(f"write {choice.name} at opset {opset}")
            folder = self._folder / str(len(self._written))
            self._written[key] = write_graph(self._captured, choice, opset, folder)
        file, contract = self._written[key]
        if (key, judge) not in self._certificates:
            self._certificates[key, judge] = certify_graph(
                file, judge, self._captured, self._lengths, self._on_step
            )
        self.sources.append(
            VariantSource(
                name=str(provider),
                provider=provider,
                model=file,
                # Equal graphs may have been chosen for different reasons.
                contract=replace(contract, choice=contract_choice(self._captured, choice)),
                certificate=self._certificates[key, judge],
                companions=self._captured.target.companions,
            )
        )
