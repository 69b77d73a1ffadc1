"""A provider that is asked for is there, or the call is refused.

ONNX Runtime gives a CPU session and a warning for a provider that is absent or misspelt.
"""

from __future__ import annotations

from causal_attn.errors import ProviderError
from causal_attn.machine.provider import Provider
from causal_attn.machine.wheels import conflict, install_command, installed_wheels
from causal_attn.runtime.ort import available_names

__all__ = ["available_providers", "require_provider"]


def available_providers() -> tuple[Provider, ...]:
    """The providers that this package knows and the installed ONNX Runtime has.

    By ONNX Runtime's own preference, so that ``cpu`` is last. That a provider is in the wheel does
    not mean that its device or libraries are there: `causal_attn.runtime.load` finds that out.
    """
    known = {provider.ort_name: provider for provider in Provider}
    return tuple(known[name] for name in available_names() if name in known)


def require_provider(provider: str | Provider) -> Provider:
    """The provider called `provider`, which the one installed ONNX Runtime has.

    Raises:
        ProviderError: No provider is called so, the installed ONNX Runtime does not have it, or
            two wheels of ONNX Runtime are installed at once. The message has the command to run.
    """
    wanted = Provider.parse(provider)
    wheels = installed_wheels()
    if trouble := conflict(wheels, wanted):
        raise ProviderError(
            f"`provider` must be run by one ONNX Runtime, got {wanted} while {trouble}"
        )
    available = available_providers()
    if wanted not in available:
        raise ProviderError(
            f"`provider` must be one that the installed ONNX Runtime has, "
            f"{[str(name) for name in available]}, got {str(wanted)!r}. "
            f"Get it with: {install_command(wanted, wheels)}"
        )
    return wanted
