"""Signatures: who stands behind a model, in a file beside it, ``model.onnx.sig``.

Definition. The signature is ed25519 (RFC 8032) over the UTF-8 bytes of one JSON object with sorted
keys and no spaces: ``schema``; ``digest``, the model's as `causal_attn.package.digest` has it;
``contract`` and ``certificate``, sha256 of their texts as they stand in the file, or in the
metadata of a model that is alone; ``session_options``; and ``companions``, name to sha256 of each
of `causal_attn.package.companions.COMPANIONS` in the folder. Everything that `load` goes by is in
it: an exchanged contract would let wrong feeds in.

A signature says who, not which and not when: every model that the key ever signed is as good. What
is promised, and what is not, is in ``SECURITY.md``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from causal_attn.atomic_file import replacing_file
from causal_attn.errors import CertificateError, MissingDependencyError, PackageError, UsageError
from causal_attn.json_text import shown
from causal_attn.package.companions import companion_digests
from causal_attn.package.confine import open_regular, read_text
from causal_attn.package.digest import held_digest
from causal_attn.package.hold import HeldModel, hold_model
from causal_attn.package.json_fields import read_fields, refusal, write_fields
from causal_attn.package.read import Variant, check_certificate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

__all__ = [
    "SCHEMA",
    "SIGNATURE_SUFFIX",
    "check_signature",
    "private_key",
    "public_key",
    "sign",
    "signature_path",
]

SCHEMA = "causal_attn.signature/1"
SIGNATURE_SUFFIX = ".sig"

_FIELDS = {"algorithm", "public_key", "signature"}
_ALGORITHM = "ed25519"
_MOST_KEY_BYTES = 1 << 16


def signature_path(variant: Variant) -> Path:
    """Where the signature of `variant` is, or would be."""
    return variant.model.with_name(variant.model.name + SIGNATURE_SUFFIX)


def sign(variant: Variant, key: Ed25519PrivateKey) -> Path:
    """Write the signature of `variant`; an older one is replaced. Returns its path.

    Raises:
        CertificateError: The certificate does not say that this very model passed: nothing that
            was not checked is signed.
        PackageError: The model cannot be read.
        UsageError: The place cannot be written.
    """
    with hold_model(variant.model) as held:
        check_certificate(variant, held)
        signature = key.sign(_statement(variant, held))
        held.require_unchanged()
    values = {
        "schema": SCHEMA,
        "algorithm": _ALGORITHM,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": signature.hex(),
    }
    path = signature_path(variant)
    with replacing_file(path) as file:
        file.write(write_fields(values, "The signature").encode())
    return path


def check_signature(variant: Variant, held: HeldModel, key: Ed25519PublicKey) -> None:
    """Refuse a variant that `key` did not sign, as it is now.

    Args:
        variant: What was read of it.
        held: Its model.
        key: That is trusted.

    Raises:
        CertificateError: There is no signature, it is by another key, or something that it covers
            was changed.
        PackageError: The signature is none, or a file that it covers cannot be read.
    """
    from cryptography.exceptions import InvalidSignature

    path = signature_path(variant)
    if not os.path.lexists(path):
        raise CertificateError(
            f"The model must be signed by the key in `trust`, got no signature: {path} is not "
            "there. Sign it with causal-attn sign."
        )
    signer, signature = _read(path)
    if signer != key.public_bytes_raw():
        raise CertificateError(
            "The model must be signed by the key in `trust`, "
            f"{key.public_bytes_raw().hex()}, got a signature by {signer.hex()}: {path}."
        )
    try:
        key.verify(signature, _statement(variant, held))
    except InvalidSignature:
        raise CertificateError(
            "The model must be as it was signed, got another: the model, its contract, its "
            f"certificate or a file beside them was changed after {path} was written, or that "
            "file was."
        ) from None


def private_key(key: str | os.PathLike[str] | bytes) -> Ed25519PrivateKey:
    """The key of a PEM file as ``openssl genpkey -algorithm ed25519`` writes it.

    Args:
        key: Path of the file, or its content as bytes. It has no password.

    Raises:
        UsageError: It is no such key.
        MissingDependencyError: The extra ``[sign]`` is not installed.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    found = _parsed(key, "key", lambda data: load_pem_private_key(data, None))
    if not isinstance(found, Ed25519PrivateKey):
        raise UsageError(f"`key` must be an ed25519 private key, got {type(found).__name__}.")
    return found


def public_key(trust: str | os.PathLike[str] | bytes) -> Ed25519PublicKey:
    """The key of a PEM file as ``openssl pkey -pubout`` writes it.

    Args:
        trust: Path of the file, or its content as bytes.

    Raises:
        UsageError: It is no such key.
        MissingDependencyError: The extra ``[sign]`` is not installed.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found = _parsed(trust, "trust", load_pem_public_key)
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"`trust` must be an ed25519 public key, got {type(found).__name__}.")
    return found


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "Signatures need cryptography, which is not installed. Install it with: "
            "pip install 'causal-attn[sign]'",
            name="cryptography",
        ) from error


def _statement(variant: Variant, held: HeldModel) -> bytes:
    """What is signed: the module's docstring has the definition."""
    values = {
        "schema": SCHEMA,
        "digest": held_digest(held),
        "contract": variant.texts.get("contract"),
        "certificate": variant.texts.get("certificate"),
        "session_options": dict(variant.session_options),
        "companions": companion_digests(variant.directory),
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def _read(path: Path) -> tuple[bytes, bytes]:
    """The public key and the signature that a file says."""
    values = read_fields(read_text(path, "The signature"), "The signature", SCHEMA, _FIELDS)
    if values["algorithm"] != _ALGORITHM:
        raise refusal("algorithm", f"be {_ALGORITHM!r}", values["algorithm"])
    return _hex(values, "public_key", 32), _hex(values, "signature", 64)


def _hex(values: dict[str, object], name: str, size: int) -> bytes:
    value = values[name]
    try:
        data = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        data = b""
    if len(data) != size:
        raise refusal(name, f"be {2 * size} hex digits", value)
    return data


def _parsed(
    key: str | os.PathLike[str] | bytes, argument: str, parse: Callable[[bytes], object]
) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm

    data = key if isinstance(key, bytes) else _content(key, argument)
    kind = "public" if argument == "trust" else "private"
    try:
        return parse(data)
    # TypeError: it has a password.
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"`{argument}` must be the PEM of an ed25519 {kind} key without a password, got "
            f"{'bytes' if isinstance(key, bytes) else str(key)}: {error}"
        ) from None


def _content(key: object, argument: str) -> bytes:
    if not isinstance(key, str | os.PathLike) or not isinstance(os.fspath(key), str):
        raise UsageError(
            f"`{argument}` must be the path of a PEM file, or its content as bytes, got "
            f"{shown(key)}."
        )
    try:
        with open_regular(Path(key), f"`{argument}`") as file:
            return file.read(_MOST_KEY_BYTES)
    except (PackageError, OSError) as error:
        raise UsageError(str(error)) from None
