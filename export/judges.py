"""Which provider checks the graph of which variant."""

from __future__ import annotations

from collections.abc import Sequence

from causal_attn.errors import ProviderError
from causal_attn.machine.provider import Provider
from causal_attn.runtime import available_providers

__all__ = ["judging_providers"]


def judging_providers(
    providers: Sequence[str | Provider], check_on: Sequence[str | Provider] | None
) -> dict[Provider, Provider]:
    """The variants, each with the provider that checks it.

    Args:
        providers: One variant each.
        check_on: Where they may be checked; default each on its own provider.

    Raises:
        ProviderError: A name is unknown or there twice, or a variant's provider is not installed
            and `check_on` does not say where to check its graph instead.
    """
    variants = _parse_providers(providers)
    available = available_providers()
    allowed = available if check_on is None else _parse_providers(check_on)
    if missing := [provider for provider in allowed if provider not in available]:
        raise ProviderError(
            f"`check_on` must name installed providers, {[str(p) for p in available]}, "
            f"got {[str(p) for p in missing]}."
        )
    judges = {}
    for variant in variants:
        if variant in allowed:
            judges[variant] = variant
        elif check_on is not None:
            judges[variant] = allowed[0]
        else:
            raise ProviderError(
                f"`providers` must be installed to be checked, {[str(p) for p in available]}, got "
                f"{str(variant)!r}. Export where it is, or check its graph elsewhere with "
                "check_on=('cpu',) and run `causal-attn verify` on the machine that has it."
            )
    return judges


def _parse_providers(providers: Sequence[str | Provider]) -> tuple[Provider, ...]:
    if isinstance(providers, str) or not providers:
        raise ProviderError(f"`providers` must be a sequence of names, got {providers!r}.")
    parsed = tuple(Provider.parse(provider) for provider in providers)
    if len(set(parsed)) != len(parsed):
        raise ProviderError(f"`providers` must be distinct, got {[str(p) for p in parsed]}.")
    return parsed
