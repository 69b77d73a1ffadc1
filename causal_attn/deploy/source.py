"""The package that is deployed: read, checked, and copied so that the copy is what was checked."""

from __future__ import annotations

import posixpath
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from causal_attn.errors import InputError, PackageError, ProviderError, UsageError
from causal_attn.json_text import shown
from causal_attn.machine.provider import Provider
from causal_attn.package import Variant, check_certificate, read_package
from causal_attn.package.companions import COMPANIONS
from causal_attn.package.confine import open_regular
from causal_attn.package.digest import external_files
from causal_attn.package.manifest import MANIFEST
from causal_attn.package.read import open_model
from causal_attn.package.signature import SIGNATURE_SUFFIX
from causal_attn.serve.named_paths import named_paths

__all__ = ["Source", "open_source"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A package, and the one variant of it that is deployed.

    Attributes:
        name: That clients call the model by.
        root: The package's folder; ``None`` for a lone model.
        variant: For `provider`.
        provider: That it is run on.
        certified: Whether its certificate is held against every copy.
    """

    name: str
    root: Path | None
    variant: Variant
    provider: Provider
    certified: bool

    def copy_model(self, folder: Path) -> None:
        """Copy the model to ``folder/model.onnx``, with its external data beside it.

        Raises:
            PackageError: A file cannot be read, or would take the place of another.
            CertificateError: What was copied is not what the certificate is of.
        """
        self._copy_model(folder, "model.onnx")
        self._require_copy(folder / "model.onnx")

    def copy_package(self, folder: Path) -> None:
        """Copy the package, with all of its variants and nothing else that lies in it.

        Raises:
            UsageError: It is a lone model.
            PackageError: A file cannot be read.
            CertificateError: What was copied is not what the certificate is of.
        """
        if self.root is None:
            raise UsageError(
                f"`package` must be a package's folder here, got the lone model "
                f"{str(self.variant.model)!r}. Export or certify it into a package."
            )
        root = self.root.resolve()
        for variant in read_package(root).variants:
            inside = folder / variant.directory.resolve().relative_to(root)
            inside.mkdir(parents=True, exist_ok=True)
            model = variant.model.name
            replace(self, variant=variant)._copy_model(inside, model)
            beside = ("contract.json", "certificate.json", f"{model}{SIGNATURE_SUFFIX}")
            for name in (*beside, *COMPANIONS):
                if (variant.directory / name).exists():
                    _copy(variant.directory / name, inside / name)
        _copy(root / MANIFEST, folder / MANIFEST)
        self._require_copy(folder / self.variant.model.resolve().relative_to(root))

    def _copy_model(self, folder: Path, name: str) -> None:
        model, taken = self.variant.model, {name}
        for location, file in external_files(model).items():
            target = posixpath.normpath(location)
            if target in taken:
                raise PackageError(
                    f"External data must not be called {target!r}, as the model is: {model}. Save "
                    "the model with another location."
                )
            taken.add(target)
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            _copy(file, folder / target)
        _copy(model, folder / name)

    def _require_copy(self, model: Path) -> None:
        """The files may have changed since they were checked: the copy is what counts."""
        if self.certified:
            check_certificate(replace(self.variant, model=model, directory=model.parent))


def open_source(package: str, *, provider: str = "cpu", accept: str = "certified") -> Source:
    """Read and check the package of a command line.

    Args:
        package: ``PATH`` or ``NAME=PATH``; a path alone is called by its last part.
        provider: A short name, or ONNX Runtime's.
        accept: ``certified``, or ``unverified``: also without a right certificate.

    Raises:
        UsageError: An argument is wrong.
        ProviderError: There is no variant for `provider`.
        InputError: A tensor has a dtype that no client can send.
        PackageError: The package cannot be read.
        CertificateError: The certificate is missing, failed, or of another model.
    """
    if accept not in ("certified", "unverified"):
        raise UsageError(f"`accept` must be certified or unverified, got {accept!r}.")
    ((name, path),) = named_paths([package]).items()
    if set(name) == {"."}:
        raise UsageError(f"`package` must have a name that a folder can have, got {name!r}.")
    wanted = Provider.parse(provider)
    if wanted is Provider.WEBGPU:
        raise ProviderError(
            "`provider` must be one that servers have, got 'webgpu'. Deploy the variant for "
            "cpu or cuda."
        )
    if not path.exists():
        raise PackageError(
            f"`package` must be a package or an .onnx file, got {str(path)!r}: not there."
        )
    variant = read_package(path).select(wanted) if path.is_dir() else open_model(path)
    for tensor in (*variant.contract.inputs, *variant.contract.outputs):
        if tensor.dtype == "bfloat16":
            raise InputError(
                f"`package` must have no bfloat16 inputs and outputs, got {shown(tensor.name)}: "
                "ONNX Runtime's servers do not take it. Export it with float16 or float32."
            )
    if accept == "certified":
        check_certificate(variant)
    return Source(
        name=name,
        root=path if path.is_dir() else None,
        variant=variant,
        provider=wanted,
        certified=accept == "certified",
    )


def _copy(source: Path, target: Path) -> None:
    with open_regular(source, "The package") as original, open(target, "xb") as copy:
        shutil.copyfileobj(original, copy, 1 << 20)
