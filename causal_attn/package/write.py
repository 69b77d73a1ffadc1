"""Write a model package: whole or not at all, and only with certificates of its own models."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from causal_attn.errors import PackageError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate
from causal_attn.package.companions import COMPANIONS
from causal_attn.package.confine import open_regular
from causal_attn.package.contract import Contract
from causal_attn.package.digest import (
    CERTIFICATE_KEY,
    CONTRACT_KEY,
    external_files,
    write_metadata,
)
from causal_attn.package.manifest import MANIFEST, SCHEMA_VERSION, read_manifest
from causal_attn.package.read import SLOT, Package, check_certificate, read_package
from causal_attn.package.replace import replacing_folder, require_replaceable
from causal_attn.package.signature import SIGNATURE_SUFFIX

__all__ = ["VariantSource", "require_free", "write_package"]

_MODEL, _CONTRACT, _CERTIFICATE = "model.onnx", "contract.json", "certificate.json"

_OWN = (_MODEL, _CONTRACT, _CERTIFICATE, f"{_MODEL}{SIGNATURE_SUFFIX}", *COMPANIONS)

# These become folder names on every system.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantSource:
    """What one variant is made from.

    Attributes:
        provider: The execution provider it is for.
        model: An ONNX file; its external data, if any, lies beside it. It is copied.
        contract: What goes in and comes out.
        certificate: Of this very model: its digest must be that of
            `causal_attn.package.digest.model_digest`, and whoever ran the checks puts it there.
            ``None``: nothing was checked; the package can be written and inspected, and a runtime
            refuses it.
        name: Letters, digits, ``_`` and ``-``; ``None``: the provider's short name.
        component: Likewise; ``None``: the package's name.
        session_options: ONNX Runtime's session config entries that the model needs, out of
            `causal_attn.package.session_options.SWITCHES`.
        companions: Name to content of files that lie beside the model, out of `COMPANIONS`.
    """

    provider: Provider
    model: str | os.PathLike[str]
    contract: Contract
    certificate: Certificate | None
    name: str | None = None
    component: str | None = None
    session_options: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, bytes] = field(default_factory=dict)


def require_free(path: str | os.PathLike[str]) -> None:
    """Refuse a `path` that `write_package` would refuse, before any work is done for it.

    Raises:
        UsageError: `path` holds something that is not a package.
    """
    require_replaceable(Path(path).absolute(), _is_package)


def write_package(
    path: str | os.PathLike[str],
    *,
    name: str,
    variants: Sequence[VariantSource],
    description: str = "",
    version: str = "1",
) -> Package:
    """Write the package, and then put it at `path` in one step.

    An interruption leaves at `path` what was there. The same arguments give the same bytes.

    Args:
        path: A new folder, an empty one, or an earlier package, which is replaced.
        name: Of the package, and of the component unless a source says otherwise.
        variants: At least one. Each gets a folder of its own, even if models are equal: a
            portable package shares no files.
        description: One sentence for people.
        version: Of the package.

    Raises:
        UsageError: A name is wrong or taken, there are no variants, or `path` holds something
            that is not a package.
        PackageError: A model or its external data cannot be read.
        CertificateError: A certificate records a failure or is of another model.
    """
    path = Path(path).absolute()
    _require_name("name", name)
    if not variants:
        raise UsageError("`variants` must have at least one variant, got none.")
    placed: dict[tuple[str, str], VariantSource] = {}
    for source in variants:
        place = (source.component or name, source.name or str(source.provider))
        _require_name("component", place[0])
        _require_name("name of a variant", place[1])
        if place in placed:
            raise UsageError(
                f"`variants` must have distinct names, got {'/'.join(place)!r} twice. Give one a "
                "`name`."
            )
        placed[place] = source
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "package_name": name,
        "package_version": version,
        "description": description,
        "layout": "portable",
        "additional_metadata": {"producer": SLOT},
        "components": {component: {"variants": {}} for component, _ in placed},
    }
    with replacing_folder(path, _is_package) as staged:
        for (component, variant), source in placed.items():
            manifest["components"][component]["variants"][variant] = _entry(
                f"{component}/{variant}", source
            )
            _write_variant(staged / component / variant, source)
        (staged / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        for written in read_package(staged).variants:
            if written.certificate is not None:
                check_certificate(written)
    return read_package(path)


def _entry(directory: str, source: VariantSource) -> dict[str, Any]:
    slot = {"contract": _CONTRACT}
    if source.certificate is not None:
        slot["certificate"] = _CERTIFICATE
    return {
        "variant_directory": directory,
        "ep": source.provider.ort_name,
        "device": source.provider.device,
        "executor_info": {
            "ort": {"model_file": _MODEL, "session_options": dict(source.session_options)},
            SLOT: slot,
        },
    }


def _write_variant(folder: Path, source: VariantSource) -> None:
    folder.mkdir(parents=True)
    entries = {CONTRACT_KEY: source.contract.to_json()}
    (folder / _CONTRACT).write_text(entries[CONTRACT_KEY], "utf-8")
    if source.certificate is not None:
        entries[CERTIFICATE_KEY] = source.certificate.to_json()
        (folder / _CERTIFICATE).write_text(entries[CERTIFICATE_KEY], "utf-8")
    for name, content in source.companions.items():
        if name not in COMPANIONS:
            raise PackageError(f"A companion must be one of {COMPANIONS}, got {name!r}.")
        (folder / name).write_bytes(content)
    copied: set[str] = {*_OWN}
    for location, file in external_files(source.model).items():
        target = posixpath.normpath(location)
        if target.lower() in copied or target.lower().split("/")[0] in copied:
            raise PackageError(
                f"External data must not be called {sorted(copied)}, got {location!r} in "
                f"{source.model}. Save the model with another location."
            )
        copied.add(target.lower())
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        _copy(file, folder / target)
    _copy(Path(source.model), folder / _MODEL)
    write_metadata(folder / _MODEL, entries)


def _copy(source: Path, target: Path) -> None:
    with open_regular(source, "The model") as original, open(target, "xb") as copy:
        shutil.copyfileobj(original, copy, 1 << 20)


def _is_package(path: Path) -> bool:
    """Whether `path` is a package and nothing but: what else lies in it would be lost.

    Contracts are not read: one that another version wrote is exported again, over the old one.
    """
    try:
        variants = read_manifest(path).variants
        known = {path / MANIFEST}
        for variant in variants:
            folder = variant.folder(path)
            known |= {folder / name for name in _OWN}
            known |= set(external_files(folder / _MODEL).values())
    except PackageError:
        return False
    there = {file.resolve() for file in path.rglob("*") if file.is_symlink() or not file.is_dir()}
    ours = all(SLOT in variant.executors for variant in variants)
    return ours and there <= {file.resolve() for file in known}


def _require_name(argument: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{argument}` must be 1 to 64 letters, digits, '_' or '-', and start with a letter "
            f"or digit, got {name!r}."
        )
