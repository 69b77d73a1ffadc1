"""Every error of this package, in one tree; each says what must be, what came, and what to do.

::

    CausalAttnError
    ├── UsageError (ValueError)      an argument, a feed or an option is wrong; nothing was done
    │   ├── SpecError                an AttentionSpec that cannot be
    │   ├── InputError               a tensor of the wrong shape, dtype, device or name
    │   └── ProviderError            a provider that is unknown, missing or does not run the graph
    ├── CaptureError                 torch.export or torch.onnx cannot express the target
    ├── CheckError                   the graph was made, and a check found it wrong
    ├── PackageError                 a package or model that cannot be read, or is not what it says
    │   └── CertificateError         the certificate is missing, failed, or of another model
    ├── EngineError                  ONNX Runtime failed while loading or running
    │   ├── ClosedError              the session was closed
    │   ├── StoppedError             the call was ended by its deadline, or from another thread
    │   ├── ContextError             a sequence is as long as the model or the cache allows
    │   └── BusyError                as many requests wait as may; try again later
    └── MissingDependencyError (ModuleNotFoundError)   an extra of this package is not installed

The command line turns ``UsageError``, ``PackageError`` and ``MissingDependencyError`` into exit
code 2, ``CaptureError`` into 2, ``CheckError`` and ``CertificateError`` into 1. Exceptions of
ONNX Runtime are mapped in one place, ``causal_attn.runtime.ort``.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BusyError",
    "CaptureError",
    "CausalAttnError",
    "CertificateError",
    "CheckError",
    "ClosedError",
    "ContextError",
    "EngineError",
    "InputError",
    "MissingDependencyError",
    "PackageError",
    "ProviderError",
    "SpecError",
    "StoppedError",
    "UsageError",
]


class CausalAttnError(Exception):
    """Base of every error this package raises on purpose.

    ``exit_code`` is what the command line returns for it: 1 a check failed, 2 wrong usage or
    unreadable input, 3 could not decide.
    """

    exit_code = 2


class UsageError(CausalAttnError, ValueError):
    """An argument is wrong; nothing was done."""


class SpecError(UsageError):
    """An `AttentionSpec` field, or a combination of fields, that cannot be."""


class InputError(UsageError):
    """A tensor with the wrong name, shape, dtype or device."""


class ProviderError(UsageError):
    """An execution provider that is unknown, not installed, or does not run the whole graph."""


class CaptureError(CausalAttnError):
    """torch.export or torch.onnx cannot express the target; the message names the log file."""


class CheckError(CausalAttnError):
    """The graph was made and a check found it wrong; no package was left behind."""

    exit_code = 1


class PackageError(CausalAttnError):
    """A package or model file that cannot be read or is not what it says."""


class CertificateError(PackageError):
    """The certificate is missing, records a failure, or belongs to another model."""

    exit_code = 1


class EngineError(CausalAttnError):
    """ONNX Runtime failed while loading or running a model."""


class ClosedError(EngineError):
    """The session was closed before this call."""


class StoppedError(EngineError):
    """The call was ended by a deadline or from another thread; the session goes on."""


class ContextError(EngineError):
    """A sequence is as long as the model or the cache allows.

    Attributes:
        tokens: What it held before: the prompt and what was generated.
    """

    def __init__(self, message: str, tokens: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tokens = tuple(tokens)


class BusyError(EngineError):
    """As many requests wait as may: this one was not taken, and may be sent again later."""


class MissingDependencyError(CausalAttnError, ModuleNotFoundError):
    """A module of an extra that is not installed; the message is the command that installs it."""
