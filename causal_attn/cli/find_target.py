"""Find the module or function that a user names on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from causal_attn.errors import UsageError

__all__ = ["find_target", "require_target"]

REFERENCE = "causal_attention"


def require_target(name: str) -> None:
    """Refuse what `find_target` cannot find, before any code is imported.

    Raises:
        UsageError: `name` has another shape, or the file is not there.
    """
    if name != REFERENCE and not _is_model_folder(name) and not _is_program(name):
        _parts(name)


def find_target(name: str) -> Any:
    """The object called `name`: ``file.py:attribute`` or ``package.module:attribute``.

    ``causal_attention`` alone is the reference; a folder with a ``config.json`` is a language
    model as `transformers` saves it, a file that ends in ``.pt2`` a program as
    ``torch.export.save`` does. A class is called without arguments. Modules are looked for
    in the working folder first, as ``python -m`` does, and a file finds its neighbours.

    Raises:
        UsageError: The file, module or attribute is not there, or importing it fails.
    """
    if name == REFERENCE:
        from causal_attn.attention.reference import causal_attention

        return causal_attention
    if _is_model_folder(name):
        from causal_attn.export.decoder.folder import load_folder

        return load_folder(Path(name))
    if _is_program(name):
        return _load_program(name)
    place, attribute = _parts(name)
    try:
        module = _load(Path(place)) if place.endswith(".py") else _import(place)
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
    if not hasattr(module, attribute):
        raise UsageError(f"`TARGET` must name something in {place}, got {attribute!r}.")
    found = getattr(module, attribute)
    return found() if isinstance(found, type) else found


def _is_model_folder(name: str) -> bool:
    return (Path(name) / "config.json").is_file()


def _is_program(name: str) -> bool:
    """Whether `name` is a file of torch.export.

    Raises:
        UsageError: It should be one and is not there.
    """
    if not name.endswith(".pt2"):
        return False
    if not Path(name).is_file():
        raise UsageError(f"`TARGET` must name a file that exists, got {name!r}.")
    return True


def _load_program(name: str) -> Any:
    import torch

    try:
        return torch.export.load(name)
    # A damaged file, one of another release, an op that is not registered: torch raises anything.
    except Exception as error:
        raise UsageError(
            f"`TARGET` must be a program of torch.export.save, got {type(error).__name__} from "
            f"{name}: {error}"
        ) from error


def _parts(name: str) -> tuple[str, str]:
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        raise UsageError(
            "`TARGET` must be causal_attention, file.py:attribute, module:attribute, a file "
            f"program.pt2 or a folder with a config.json, got {name!r}."
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(f"`TARGET` must name a file that exists, got {place!r}.")
    return place, attribute


def _import(place: str) -> ModuleType:
    # A console script has its own folder in front, not the one the user is in.
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(place)


def _load(path: Path) -> ModuleType:
    """The module of a file, under a name that no other module has.

    Under its stem, a file called ``onnx.py`` would be the onnx that the exporter imports, and a
    file whose stem is imported already would not be registered: torch.export looks the modules
    of functions up by name.
    """
    name = "target_" + re.sub(r"\W", "_", str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"`TARGET` must name a Python file, got {str(path)!r}.")
    # Behind the libraries, so that a neighbour hides none of them.
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
