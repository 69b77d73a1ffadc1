"""The distributions that own the module ``onnxruntime``, of which one may be installed.

onnxruntime, onnxruntime-gpu and the others unpack into the same folder: the one installed last
overwrites files of the one before, and uninstalling either leaves the other broken. Neither pip
nor ONNX Runtime says a word.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from causal_attn.machine.provider import Provider

__all__ = ["ORT_WHEELS", "conflict", "install_command", "installed_wheels", "version_of"]

ORT_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
    "onnxruntime-webgpu",
    "onnxruntime-windowsml",
    "ort-nightly",
    "ort-nightly-gpu",
)
"""Distribution names on PyPI, and the nightly ones, that install the module."""


def version_of(distribution: str) -> str | None:
    """The installed version of `distribution`, or ``None``; nothing of it is imported."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def installed_wheels() -> Mapping[str, str]:
    """Those of `ORT_WHEELS` that are installed, to their versions; looked up once a process.

    Where the module is found in one folder of the path and a wheel lies in a later one, as in an
    environment made on top of another, that wheel is shadowed and overwrites nothing: it is left
    out.
    """
    imported = _imported_from()
    found = {
        name: (version, _folder_of(name)) for name in ORT_WHEELS if (version := version_of(name))
    }
    here = {name for name, (_, folder) in found.items() if folder == imported}
    return MappingProxyType(
        {name: version for name, (version, _) in found.items() if not here or name in here}
    )


def _imported_from() -> Path | None:
    """The folder in which the module is; nothing of it is imported."""
    folders = (Path(entry or ".").resolve() for entry in sys.path)
    return next((one for one in folders if (one / "onnxruntime/__init__.py").exists()), None)


def _folder_of(distribution: str) -> Path:
    from importlib import metadata

    return Path(str(metadata.distribution(distribution).locate_file(""))).resolve()


def conflict(wheels: Collection[str], provider: Provider) -> str | None:
    """A sentence and the command that mends it if more than one of `wheels` is installed.

    Args:
        wheels: Names of installed distributions, see `installed_wheels`.
        provider: The provider that should work afterwards.
    """
    if len(wheels) < 2:
        return None
    return (
        f"{' and '.join(wheels)} are both installed and overwrite one another: which providers "
        f"work is chance. Keep one: {install_command(provider, wheels)}"
    )


def install_command(provider: Provider, wheels: Collection[str]) -> str:
    """The shell command that gets `provider`, given the `wheels` installed now.

    It uninstalls every wheel first where the one that is needed is not the only one there:
    what is left of a folder that two wheels shared does not work.
    """
    install = f"pip install '{provider.requirement}'"
    if not wheels or tuple(wheels) == (provider.wheel,):
        return install
    return f"pip uninstall -y {' '.join(wheels)} && {install}"
