"""`manifest.json` of an ONNX Runtime model package, read as the untrusted file it is.

The format, as ONNX Runtime 1.32 reads it: ``schema_version`` of major 1; ``components``, name to
an object or to the path of a ``component.json`` (or of its folder); each with ``variants``, name
to ``variant_directory``, ``ep``, ``device`` and ``executor_info``, whose entries are objects or
paths of JSON files in the variant's directory. Paths are those of `causal_attn.package.confine`,
whatever layout the manifest claims: the ``installed`` layout of the format would let a package
name files anywhere. As in ONNX Runtime, a field that schema 1.0 does not know is refused; a later
minor version may have more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from causal_attn.errors import PackageError
from causal_attn.json_text import parse_json, shown
from causal_attn.package.confine import confined_file, confined_folder, read_text

__all__ = ["MANIFEST", "SCHEMA_VERSION", "Manifest", "ManifestVariant", "read_manifest"]

MANIFEST = "manifest.json"
SCHEMA_VERSION = "1.0"

_MANIFEST_FIELDS = {
    "schema_version", "package_name", "package_version", "description", "layout", "components",
    "shared_assets", "additional_metadata",
}  # fmt: skip
_COMPONENT_FIELDS = {"component_name", "variants", "additional_metadata"}
_VARIANT_FIELDS = {
    "variant_directory", "ep", "device", "compatibility_string", "executor_info",
    "additional_metadata",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestVariant:
    """One variant as the manifest has it; no file of it has been opened.

    Attributes:
        component: Its component's name.
        name: Its own.
        base: Folder that `directory` starts from: the package, or where its component.json is.
        directory: ``variant_directory``, or its default, the variant's name.
        ep: The execution provider by ONNX Runtime's name, known here or not; ``""``: none named.
        device: Such as ``cpu`` or ``gpu``; ``""``: none named.
        executors: ``executor_info``: who runs it -> an object, or the path of a JSON file.
    """

    component: str
    name: str
    base: Path
    directory: str
    ep: str
    device: str
    executors: Mapping[str, Any]

    @property
    def where(self) -> str:
        """What error messages call it."""
        return f"{MANIFEST}: variant {shown(self.name)} of {shown(self.component)}"

    def folder(self, root: Path) -> Path:
        """Its directory, inside the package `root`.

        Raises:
            PackageError: It is not there or leads outside.
        """
        return confined_folder(root, self.base, self.directory, f"{self.where}: its directory")

    def executor(self, root: Path, folder: Path, who: str) -> dict[str, Any]:
        """The entry of `executor_info` for `who`, read from its file if it names one.

        Raises:
            PackageError: It is not there, or no object.
        """
        entry = self.executors.get(who)
        where = f"{self.where}: executor_info[{who!r}]"
        if isinstance(entry, str):
            file = confined_file(root, folder, entry, where)
            entry = parse_json(read_text(file, where), where)
        return _object(entry, where)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a manifest says; ``""`` where it says nothing."""

    name: str
    version: str
    description: str
    variants: tuple[ManifestVariant, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_manifest(root: Path) -> Manifest:
    """Read the manifest of the package `root`, and the component files that it names.

    Raises:
        PackageError: There is none, or it is not of this format; the message says where.
    """
    if not os.path.isdir(root):
        raise PackageError(f"A package must be a folder with a {MANIFEST}, got {str(root)!r}.")
    if not os.path.lexists(root / MANIFEST) and os.path.isfile(root / "config.json"):
        raise PackageError(
            f"A package must be a folder with a {MANIFEST}, got {str(root)!r}, a model of "
            "transformers (config.json). Export it first: "
            f"causal-attn export {quote(str(root))} -o OUT"
        )
    file = confined_file(root, root, MANIFEST, "A package")
    values = _object(parse_json(read_text(file, MANIFEST), MANIFEST), MANIFEST)
    strict = _minor(values.get("schema_version")) == 0
    _known(values, _MANIFEST_FIELDS, MANIFEST, strict)
    if values.get("layout", "portable") not in ("portable", "installed"):
        raise PackageError(
            f"{MANIFEST}: `layout` must be 'portable' or 'installed', got "
            f"{shown(values['layout'])}."
        )
    variants: list[ManifestVariant] = []
    for name, component in _object(values.get("components"), f"{MANIFEST}: components").items():
        variants.extend(_component(root, name, component, strict))
    if not variants:
        raise PackageError(f"{MANIFEST}: `components` must have a variant, got none.")
    return Manifest(
        name=_text(values, "package_name", MANIFEST),
        version=_text(values, "package_version", MANIFEST),
        description=_text(values, "description", MANIFEST),
        variants=tuple(variants),
        metadata=_optional(values, "additional_metadata", MANIFEST),
    )


def _component(root: Path, name: str, value: Any, strict: bool) -> list[ManifestVariant]:
    where = f"{MANIFEST}: component {shown(name)}"
    base = root
    if isinstance(value, str):
        file = _component_file(root, value, where)
        base = file.parent
        value = parse_json(read_text(file, where), where)
    component = _object(value, where)
    _known(component, _COMPONENT_FIELDS, where, strict)
    variants = []
    for variant, entry in _object(component.get("variants"), f"{where}: variants").items():
        what = f"{where}: variant {shown(variant)}"
        values = _object(entry, what)
        _known(values, _VARIANT_FIELDS, what, strict)
        if "variant_directory" in values and not values["variant_directory"]:
            raise PackageError(f"{what}: `variant_directory` must not be empty.")
        variants.append(
            ManifestVariant(
                component=name,
                name=variant,
                base=base,
                directory=_text(values, "variant_directory", what) or variant,
                ep=_text(values, "ep", what),
                device=_text(values, "device", what),
                executors=_optional(values, "executor_info", what),
            )
        )
    return variants


def _component_file(root: Path, location: str, where: str) -> Path:
    if location.endswith(".json"):
        return confined_file(root, root, location, where)
    folder = confined_folder(root, root, location, where)
    return confined_file(root, folder, "component.json", where)


def _minor(version: Any) -> int:
    text = str(version) if isinstance(version, int | str) else ""
    match = re.fullmatch(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?", text)
    if match is None or isinstance(version, bool) or int(match[1]) != 1:
        raise PackageError(
            f"{MANIFEST}: `schema_version` must be '1.<minor>', got {shown(version)}."
        )
    return int(match[2] or 0)


def _known(values: dict[str, Any], known: set[str], where: str, strict: bool) -> None:
    if strict and (unknown := sorted(set(values) - known)):
        raise PackageError(f"{where} must have only {sorted(known)}, got {shown(unknown)}.")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PackageError(f"{where} must be an object, got {shown(value)}.")
    return value


def _optional(values: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    return _object(values.get(name, {}), f"{where}: `{name}`")


def _text(values: dict[str, Any], name: str, where: str) -> str:
    value = values.get(name, "")
    if not isinstance(value, str):
        raise PackageError(f"{where}: `{name}` must be a string, got {shown(value)}.")
    return value
