"""Where code turns a length into a number, which fixes it for good while tracing."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode

__all__ = ["noting_fixed_lengths"]

_ROOT = sys.modules[__name__.partition(".")[0]]
# In an editable install this folder lies beside that of the root.
_OTHERS = (
    *(str(Path(str(module.__file__)).parent) for module in (torch, _ROOT)),
    str(Path(__file__).parents[1]),
)


@contextmanager
def noting_fixed_lengths(found: list[str]) -> Iterator[None]:
    """Inside this block `found` gets ``file.py:12: code`` for each line that fixes a size.

    Lines of torch and of this library are not the caller's and are left out.
    """
    kept = SymNode.guard_int

    def noting(self: SymNode, *args: Any, **kwargs: Any) -> Any:
        if self.maybe_as_int() is None and (line := _callers_line()) is not None:
            found.append(line)
        return kept(self, *args, **kwargs)

    SymNode.guard_int = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        SymNode.guard_int = kept  # type: ignore[method-assign]


def _callers_line() -> str | None:
    for frame in reversed(traceback.extract_stack()):
        name = str(Path(frame.filename).resolve())
        if not name.startswith(_OTHERS) and "export/capture" not in name:
            return f"{Path(name).name}:{frame.lineno}: {frame.line}"
    return None
