"""Read a model package, or a lone model, and hold a certificate against its model.

The layout of a package is drawn in `causal_attn.package`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from causal_attn.errors import CertificateError, PackageError, ProviderError, UsageError
from causal_attn.json_text import shown
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate
from causal_attn.package.confine import confined_file, read_text
from causal_attn.package.contract import Contract
from causal_attn.package.digest import (
    CERTIFICATE_KEY,
    CONTRACT_KEY,
    held_digest,
    held_metadata,
)
from causal_attn.package.hold import HeldModel, hold_model
from causal_attn.package.manifest import ManifestVariant, read_manifest
from causal_attn.package.session_options import SWITCHES, refused_options

__all__ = [
    "SLOT",
    "Package",
    "Variant",
    "check_certificate",
    "lone_variant",
    "open_model",
    "read_package",
]

SLOT = "causal_attn"
"""Our entry in ``executor_info``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One model, and what is promised about it.

    Attributes:
        name: In the package; the file's stem for a lone model.
        component: What the package calls the model; ``""`` for a lone model.
        ep: The execution provider by ONNX Runtime's name; ``""`` for a lone model, which is for
            any.
        provider: `ep` as this package knows it; ``None`` if it does not.
        device: Such as ``cpu`` or ``gpu``; ``""``: not said.
        directory: Where the model and its external data are.
        model: The ONNX file.
        contract: What goes in and comes out.
        certificate: What was checked; ``None`` if nothing was. Not yet compared with the model:
            see `check_certificate`.
        session_options: ONNX Runtime's session config entries that the model needs.
        texts: sha256, in hex, of the very texts that ``contract`` and ``certificate`` were read
            from, by these names; what a signature covers.
    """

    name: str
    component: str
    ep: str
    provider: Provider | None
    device: str
    directory: Path
    model: Path
    contract: Contract
    certificate: Certificate | None
    session_options: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A model package that was read.

    Attributes:
        root: Its folder.
        name: ``""`` if it has none; likewise `version` and `description`.
        version: Of the package, not of this library.
        description: One sentence.
        variants: Those with a contract, in the order of the manifest; at least one.
        foreign: ``component/variant`` of those without one, which nothing was read of.
        metadata: ``additional_metadata`` of the manifest.
    """

    root: Path
    name: str
    version: str
    description: str
    variants: tuple[Variant, ...]
    foreign: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def select(
        self, provider: Provider | str, component: str | None = None, name: str | None = None
    ) -> Variant:
        """The variant for `provider`.

        Args:
            provider: A short name, or ONNX Runtime's.
            component: Which model; needed if the package has several.
            name: Which variant; needed if several are for this provider.

        Raises:
            ProviderError: The package has nothing for `provider`; the message lists what it has.
            UsageError: `component` or `name` is not there, or is needed.
        """
        components = list(dict.fromkeys(variant.component for variant in self.variants))
        if component is None and len(components) == 1:
            component = components[0]
        if component not in components:
            raise UsageError(f"`component` must be one of {components}, got {component!r}.")
        there = [variant for variant in self.variants if variant.component == component]
        eps = list(dict.fromkeys(variant.ep for variant in there))
        ep = provider if provider in eps else Provider.parse(provider).ort_name
        fitting = [variant for variant in there if variant.ep == ep]
        if not fitting:
            raise ProviderError(
                f"`provider` must be one that the package was made for, got {str(provider)!r}. It "
                f"has {', '.join(_short(variant) for variant in there)}. Export it for "
                f"{str(provider)!r} too, or choose one of these."
            )
        names = [variant.name for variant in fitting]
        if name is None and len(names) == 1:
            return fitting[0]
        if name not in names:
            raise UsageError(f"`name` must be one of the variants {names}, got {name!r}.")
        return fitting[names.index(name)]


def read_package(path: str | os.PathLike[str]) -> Package:
    """Read the package at `path`: its manifest, contracts and certificates, no model yet.

    Raises:
        PackageError: It is not a package, is damaged, or names something outside its folder.
    """
    root = Path(path)
    manifest = read_manifest(root)
    ours = [variant for variant in manifest.variants if SLOT in variant.executors]
    if not ours:
        raise PackageError(
            f"The package must have a variant with a {SLOT!r} entry in its executor_info, got "
            f"none: {root}. It was not written by causal_attn."
        )
    return Package(
        root=root,
        name=manifest.name,
        version=manifest.version,
        description=manifest.description,
        variants=tuple(_variant(root, variant) for variant in ours),
        foreign=tuple(
            f"{variant.component}/{variant.name}"
            for variant in manifest.variants
            if SLOT not in variant.executors
        ),
        metadata=manifest.metadata,
    )


def open_model(path: str | os.PathLike[str]) -> Variant:
    """A lone ONNX file as a variant, by the contract and certificate in its metadata.

    Raises:
        PackageError: It is not an ONNX model, carries no contract, or a wrong one.
    """
    with hold_model(path) as held:
        return lone_variant(held)


def lone_variant(held: HeldModel) -> Variant:
    """A lone ONNX file that is held: as `open_model`.

    Raises:
        PackageError: It carries no contract, or a wrong one.
    """
    model = held.path
    entries = held_metadata(held)
    if CONTRACT_KEY not in entries:
        raise PackageError(
            f"The model must carry {CONTRACT_KEY!r} in its metadata, got none: {model}. It was "
            "not exported by causal_attn, or another tool dropped its metadata."
        )
    texts = {"contract": entries[CONTRACT_KEY]}
    if CERTIFICATE_KEY in entries:
        texts["certificate"] = entries[CERTIFICATE_KEY]
    return Variant(
        name=model.stem,
        component="",
        ep="",
        provider=None,
        device="",
        directory=model.parent,
        model=model,
        **_parsed(texts),
    )


def check_certificate(variant: Variant, held: HeldModel | None = None) -> None:
    """Refuse a variant whose certificate does not say that this very model passed.

    Reads all external data.

    Args:
        variant: With its certificate.
        held: Its model, if it was read already.

    Raises:
        CertificateError: There is no certificate, it records a failure, it belongs to another
            model, or the copy inside the model says something else.
        PackageError: The model or its external data cannot be read.
    """
    certificate = variant.certificate
    if certificate is None:
        raise CertificateError(
            f"The model must have a certificate, got none: {variant.model}. Verify it first."
        )
    if not certificate.passed:
        failed = [check.name for check in certificate.checks if check.passed is not True]
        raise CertificateError(
            f"The certificate must record that every check passed, got the verdict "
            f"{str(certificate.verdict)!r} and, not passed, {shown(failed)}: {variant.model}."
        )
    if held is None:
        with hold_model(variant.model) as held:
            _compare(variant, certificate, held)
    else:
        _compare(variant, certificate, held)


def _compare(variant: Variant, certificate: Certificate, held: HeldModel) -> None:
    digest = held_digest(held)
    if digest != certificate.digest:
        raise CertificateError(
            f"The certificate must be of this model, got one for {certificate.digest} where the "
            f"model is {digest}: {variant.model}. The model was changed after it was checked."
        )
    entries = held_metadata(held)
    if CONTRACT_KEY in entries and Contract.from_json(entries[CONTRACT_KEY]) != variant.contract:
        raise CertificateError(
            f"The contract must be the one inside the model, got another: {variant.model}."
        )
    if (
        CERTIFICATE_KEY in entries
        and Certificate.from_json(entries[CERTIFICATE_KEY]) != certificate
    ):
        raise CertificateError(
            f"The certificate must be the one inside the model, got another: {variant.model}."
        )


def _variant(root: Path, entry: ManifestVariant) -> Variant:
    where = entry.where
    if not entry.ep:
        raise PackageError(f"{where}: `ep` must name an execution provider, got none.")
    folder = entry.folder(root)
    ort = entry.executor(root, folder, "ort")
    slot = entry.executor(root, folder, SLOT)
    if unknown := sorted(set(slot) - {"contract", "certificate"}):
        raise PackageError(
            f"{where}: executor_info[{SLOT!r}] must have only contract and certificate, got "
            f"{shown(unknown)}."
        )
    # They name libraries to load and folders to write; a package has no business with either.
    if ort.get("provider_options"):
        raise PackageError(f"{where}: `provider_options` must be empty or absent.")
    named = ["contract"] if slot.get("certificate") is None else ["contract", "certificate"]
    texts = {
        name: _slot_text(root, folder, slot.get(name), f"{where}: `{name}`") for name in named
    }
    return Variant(
        name=entry.name,
        component=entry.component,
        ep=entry.ep,
        provider=next((known for known in Provider if known.ort_name == entry.ep), None),
        device=entry.device,
        directory=folder,
        model=confined_file(root, folder, ort.get("model_file"), f"{where}: `model_file`"),
        session_options=_session_options(ort.get("session_options", {}), where),
        **_parsed(texts),
    )


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `Variant` that come from the texts of its contract and its certificate."""
    certificate = texts.get("certificate")
    return {
        "contract": Contract.from_json(texts["contract"]),
        "certificate": None if certificate is None else Certificate.from_json(certificate),
        "texts": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    }


def _slot_text(root: Path, folder: Path, location: Any, what: str) -> str:
    return read_text(confined_file(root, folder, location, what), what)


def _session_options(values: Any, where: str) -> dict[str, str]:
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise PackageError(
            f"{where}: `session_options` must be an object of strings, got {shown(values)}."
        )
    # Some options redirect where weights are read from or where files are written, which would
    # undo the digest and the confinement.
    if refused := refused_options(values):
        raise PackageError(
            f"{where}: `session_options` must be out of {sorted(SWITCHES)}, each '0' or '1', got "
            f"{shown(refused)}."
        )
    return values


def _short(variant: Variant) -> str:
    return variant.ep if variant.provider is None else str(variant.provider)
