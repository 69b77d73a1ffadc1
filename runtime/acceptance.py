"""Which models `load` takes: what it asks of the certificate, the digest and the signature."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import TYPE_CHECKING

from causal_attn.errors import CertificateError, UsageError
from causal_attn.json_text import shown

if TYPE_CHECKING:
    from causal_attn.package import Variant
    from causal_attn.package.hold import HeldModel

__all__ = ["Accept", "Acceptance"]

# Hashing and keys are imported where they are used, as in `causal_attn.runtime.loading`.


class Accept(StrEnum):
    """Which models `load` takes."""

    CERTIFIED = "certified"
    """Only with a certificate that every check passed, of this very model."""
    UNVERIFIED = "unverified"
    """Any; for a model that is about to be checked."""


class Acceptance:
    """What a model must have; arguments are those of `load`.

    Raises:
        UsageError: An argument is wrong.
        MissingDependencyError: `trust` is given and the extra ``[sign]`` is not installed.
    """

    def __init__(
        self,
        accept: str | Accept,
        digest: str | None,
        trust: str | os.PathLike[str] | bytes | None,
    ) -> None:
        try:
            self._accept = Accept(accept)
        except ValueError:
            raise UsageError(
                f"`accept` must be one of {[str(value) for value in Accept]}, got {accept!r}."
            ) from None
        if digest is not None and not (
            isinstance(digest, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
        ):
            raise UsageError(
                f"`digest` must be 'sha256:' and 64 hex digits in lower case, got {shown(digest)}."
            )
        self._digest = digest
        self._key = None
        if trust is not None:
            from causal_attn.package.signature import public_key

            self._key = public_key(trust)

    def require(self, variant: Variant, held: HeldModel) -> None:
        """Refuse a model that does not have it.

        Args:
            variant: What is promised about the model.
            held: The model.

        Raises:
            CertificateError: The certificate, the digest or the signature is not what was asked.
            PackageError: A file cannot be read.
        """
        if self._key is not None:
            from causal_attn.package.signature import check_signature

            check_signature(variant, held, self._key)
        if self._accept is Accept.CERTIFIED:
            from causal_attn.package import check_certificate

            check_certificate(variant, held)
        if self._digest is not None:
            _require_digest(held, self._digest)


def _require_digest(held: HeldModel, wanted: str) -> None:
    from causal_attn.package.digest import held_digest

    found = f"sha256:{held_digest(held)}"
    if found != wanted:
        raise CertificateError(
            f"`digest` must be that of the model, got {wanted} where {held.path} has {found}. It "
            "is another model than you mean."
        )
