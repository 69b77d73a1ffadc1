"""What is installed, what is missing for which task, and the command that mends it.

Nothing is printed and nothing heavy is imported: versions come from the distributions' metadata,
and only the runtime is imported, to ask ONNX Runtime for its providers.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from causal_attn.machine.adapter import webgpu_adapters
from causal_attn.machine.provider import Provider
from causal_attn.machine.release import OLDEST, release
from causal_attn.machine.wheels import (
    ORT_WHEELS,
    conflict,
    install_command,
    installed_wheels,
    version_of,
)

__all__ = ["Diagnosis", "Problem", "Task", "diagnose"]


class Task(StrEnum):
    """What a problem stands in the way of."""

    RUN = "run"
    """`causal_attn.runtime`, and everything that runs a model."""
    CUDA = "run on cuda"
    WEBGPU = "run on webgpu"
    VERIFY = "verify"
    EXPORT = "export"


_NEEDED = {
    Task.VERIFY: ("onnx", "onnx-ir", "matplotlib"),
    Task.EXPORT: ("torch", "onnxscript"),
}

_SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""Where Debian's Chromium has a Vulkan that needs no device."""

_REPORTED = (
    "causal-attn", "numpy", *ORT_WHEELS, "torch", "onnx", "onnx-ir", "onnxscript", "ml-dtypes",
    "typer", "rich", "matplotlib",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something that does not work.

    Attributes:
        task: What it stands in the way of.
        what: One sentence.
        command: What to type in a shell to mend it.
    """

    task: Task
    what: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """This Python environment, as far as it matters here.

    Attributes:
        python: Version of the interpreter.
        system: Operating system and architecture.
        versions: Distribution name to version, of those that are installed.
        providers: Short names of the providers that the installed ONNX Runtime has, by its
            preference. That one is here does not prove that its device is.
        adapters: What WebGPU can run on, where it is among `providers` and Vulkan names it.
        problems: All that was found; those that keep models from running come first.
    """

    python: str
    system: str
    versions: Mapping[str, str]
    providers: tuple[str, ...]
    adapters: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def can_run(self) -> bool:
        """Whether nothing is in the way of running models on the CPU."""
        return all(problem.task is not Task.RUN for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """The fields, and `can_run`, as JSON values."""
        return {
            "python": self.python,
            "system": self.system,
            "versions": dict(self.versions),
            "providers": list(self.providers),
            "adapters": list(self.adapters),
            "problems": [
                asdict(problem) | {"task": str(problem.task)} for problem in self.problems
            ],
            "can_run": self.can_run,
        }


def diagnose() -> Diagnosis:
    """Look at this environment; raises nothing, whatever is missing or broken."""
    wheels = installed_wheels()
    found = {
        name: wheels.get(name) if name in ORT_WHEELS else version_of(name) for name in _REPORTED
    }
    versions = {name: version for name, version in found.items() if version is not None}
    providers, trouble = _providers()
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions,
        providers=tuple(str(provider) for provider in providers),
        adapters=webgpu_adapters() if Provider.WEBGPU in providers else (),
        problems=(
            *_runtime_problems(versions, trouble),
            *_cuda_problems(versions, providers),
            *_webgpu_problems(providers),
            *_extra_problems(versions),
        ),
    )


def _providers() -> tuple[tuple[Provider, ...], str]:
    """What ONNX Runtime offers, and why it does not import if it does not."""
    try:
        from causal_attn.runtime import available_providers
    except ImportError as error:
        return (), str(error.__cause__ or error)
    return available_providers(), ""


def _runtime_problems(versions: Mapping[str, str], trouble: str) -> list[Problem]:
    wheels = [name for name in ORT_WHEELS if name in versions]
    keep = Provider.CUDA if _nvidia_device() and len(wheels) > 1 else Provider.CPU
    if sentence := conflict(wheels, keep):
        what = sentence.partition(" Keep one: ")[0]
        return [Problem(task=Task.RUN, what=what, command=install_command(keep, wheels))]
    if not wheels:
        # Built from source or packaged by others it has no distribution of these names.
        if not trouble:
            return []
        what = "ONNX Runtime is not installed."
        return [Problem(task=Task.RUN, what=what, command=install_command(keep, wheels))]
    (wheel,) = wheels
    if trouble:
        return [
            Problem(
                task=Task.RUN,
                what=f"{wheel} {versions[wheel]} is installed and does not import: {trouble}.",
                command=f"pip install --force-reinstall --no-deps {wheel}",
            )
        ]
    if release(versions[wheel]) < release(OLDEST):
        return [
            Problem(
                task=Task.RUN,
                what=f"{wheel} must be {OLDEST} or newer, got {versions[wheel]}.",
                command=f"pip install --upgrade '{wheel}>={OLDEST}'",
            )
        ]
    return []


def _cuda_problems(versions: Mapping[str, str], providers: tuple[Provider, ...]) -> list[Problem]:
    wheels = [name for name in ORT_WHEELS if name in versions]
    if Provider.CUDA in providers or len(wheels) > 1 or not _nvidia_device():
        return []
    return [
        Problem(
            task=Task.CUDA,
            what="An NVIDIA device is visible, and this ONNX Runtime has no CUDA provider.",
            command=install_command(Provider.CUDA, wheels),
        )
    ]


def _webgpu_problems(providers: tuple[Provider, ...]) -> list[Problem]:
    # Elsewhere WebGPU is Direct3D or Metal, which every system has.
    if Provider.WEBGPU not in providers or webgpu_adapters() or platform.system() != "Linux":
        return []
    software = f"export VK_ICD_FILENAMES={_SWIFTSHADER} LD_LIBRARY_PATH={_SWIFTSHADER.parent}"
    return [
        Problem(
            task=Task.WEBGPU,
            what="ONNX Runtime has WebGPU and Vulkan has no device for it: the driver of a GPU is "
            "missing. The command has Chromium's software do it, slowly.",
            command=software
            if _SWIFTSHADER.exists()
            else f"apt-get install chromium && {software}",
        )
    ]


def _extra_problems(versions: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(
            task=task,
            what=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            command=f"pip install 'causal-attn[{task}]'",
        )
        for task, needed in _NEEDED.items()
        if (missing := [name for name in needed if name not in versions])
    ]


def _nvidia_device() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None
