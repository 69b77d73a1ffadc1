"""Find the module or function that a user names on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from causal_attn.errors import UsageError

__all__ = ["find_target"]


def find_target(name: str) -> Any:
    """The object called `name`: ``file.py:attribute`` or ``package.module:attribute``.

    ``causal_attention`` alone is the reference. A class is called without arguments.

    Raises:
        UsageError: The file, module or attribute is not there, or importing it fails.
    """
    if name == "causal_attention":
        from causal_attn.attention.reference import causal_attention

        return causal_attention
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        raise UsageError(
            "`TARGET` must be causal_attention, file.py:attribute or module:attribute, "
            f"got {name!r}."
        )
    module = _import(place)
    if not hasattr(module, attribute):
        raise UsageError(f"`TARGET` must name something in {place}, got {attribute!r}.")
    found = getattr(module, attribute)
    return found() if isinstance(found, type) else found


def _import(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place)
        if not path.is_file():
            raise UsageError(f"`TARGET` must name a file that exists, got {place!r}.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"`TARGET` must name a Python file, got {place!r}.")
        module = importlib.util.module_from_spec(spec)
        # torch.export looks modules of functions up by name.
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except SystemExit as error:
        raise UsageError(
            f"`TARGET` must import, got sys.exit({error.code!r}) in {place}."
        ) from error
    # The user's own code runs here and may raise anything.
    except Exception as error:
        raise UsageError(
            f"`TARGET` must import, got {type(error).__name__} from {place}: {error}"
        ) from error
    return module
