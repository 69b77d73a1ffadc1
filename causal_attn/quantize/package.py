"""`quantize`: a package whose weights are integers of 4 or 8 bits, checked like any other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from causal_attn.errors import CheckError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package import (
    Package,
    Variant,
    VariantSource,
    check_certificate,
    open_model,
    read_package,
    write_package,
)
from causal_attn.package.certificate import Certificate, Check
from causal_attn.package.companions import COMPANIONS
from causal_attn.package.digest import CONTRACT_KEY, write_metadata
from causal_attn.package.write import require_free
from causal_attn.quantize.against_source import check_against_source
from causal_attn.quantize.weights import BITS, BLOCK_SIZES, Quantized, quantize_weights
from causal_attn.runtime.loading import open_variant
from causal_attn.verify import verify
from causal_attn.verify.feeds.feeder import LENGTHS
from causal_attn.verify.subject import read_subject

__all__ = ["FEW_LENGTHS", "quantize"]

FEW_LENGTHS = (1, 2, 5, 13, 33)
"""Tokens that a large model is checked at: its float64 run takes minutes at others."""

_LARGE_BYTES = 256 << 20
"""Bytes from which on a model is large, and its weights lie in a file of their own."""


def quantize(
    package: str | Path,
    path: str | Path,
    *,
    bits: int = 4,
    block_size: int = 32,
    lengths: Sequence[int] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Package:
    """Write `package` with its weight matrices as integers of `bits` bits.

    Each block of `block_size` weights along the axis that is summed over shares a scale, and its
    integers lie around zero, so that no zero points are stored. Products are computed with the
    data as it is (``accuracy_level`` unset), never with data that was made integers as well.
    Tables that are looked up, such as an embedding, stay floats, and so does a bias.

    Every check is run on the quantized graph; parity is held against that graph in float64. What
    the rounding of weights changes is stated by a check of its own, as figures.

    Args:
        package: A certified package of ours.
        path: Folder to write. An older package there is replaced, and only once all is well.
        bits: 4 or 8.
        block_size: 16, 32, 64, 128 or 256. Small blocks are closer to the weights; a scale takes
            32 bits.
        lengths: Tokens to check at; default those of `export`.
        on_step: Called with a few words before each step.

    Raises:
        UsageError: An argument is wrong, or there is nothing to quantize.
        CertificateError: The package is not certified.
        CheckError: A check failed; nothing was left at `path`.
    """
    if bits not in BITS:
        raise UsageError(f"`bits` must be one of {BITS}, got {bits!r}.")
    if block_size not in BLOCK_SIZES:
        raise UsageError(f"`block_size` must be one of {BLOCK_SIZES}, got {block_size!r}.")
    path = Path(path)
    require_free(path)
    source = read_package(Path(package))
    if source.root.resolve() in path.resolve().parents:
        raise UsageError(
            f"`path` must not lie inside the package that is quantized, got {str(path)!r}."
        )
    with tempfile.TemporaryDirectory(prefix="causal_attn-") as folder:
        sources = [
            _variant(variant, Path(folder) / str(at), bits, block_size, lengths, on_step)
            for at, variant in enumerate(source.variants)
        ]
        on_step("write the package")
        return write_package(
            path,
            name=source.name,
            version=source.version,
            description=source.description,
            variants=sources,
        )


def _variant(
    variant: Variant,
    folder: Path,
    bits: int,
    block_size: int,
    lengths: Sequence[int] | None,
    on_step: Callable[[str], None],
) -> VariantSource:
    """The source of a quantized variant, written into a new `folder` and checked."""
    check_certificate(variant)
    on_step(f"quantize {variant.name} to {bits} bits")
    provider = variant.provider or Provider.CPU
    model = onnx.load(variant.model)
    large = model.ByteSize() > _LARGE_BYTES
    quantized = quantize_weights(model, bits, block_size)
    stated = {
        "bits": bits,
        "block_size": block_size,
        "symmetric": True,
        "products": quantized.products,
    }
    contract = replace(variant.contract, choice={**variant.contract.choice, "quantized": stated})
    folder.mkdir()
    file = folder / "model.onnx"
    onnx.save_model(
        quantized.model,
        file,
        save_as_external_data=large,
        location="model.onnx.data" if large else None,
    )
    write_metadata(file, {CONTRACT_KEY: contract.to_json()})
    few = FEW_LENGTHS if large else LENGTHS
    tokens = contract.lengths_within(tuple(lengths or few))
    report = verify(file, provider=provider, lengths=tokens, on_check=on_step)
    on_step("error of quantized weights")
    made = open_model(file)
    feeder = read_subject(made).interface.feeder
    with open_variant(made, provider) as new, open_variant(variant, provider) as old:
        stated_error = check_against_source(new, old, feeder, tokens)
    certificate = report.variants[0].certificate
    checks = (*certificate.checks, _rounding(quantized, bits), stated_error)
    certificate = replace(certificate, checks=checks)
    _require_passed(certificate, report.variants[0].not_checked)
    return VariantSource(
        name=variant.name,
        component=variant.component,
        provider=provider,
        model=file,
        contract=contract,
        certificate=certificate,
        session_options=variant.session_options,
        companions={
            name: (variant.directory / name).read_bytes()
            for name in COMPANIONS
            if (variant.directory / name).is_file()
        },
    )


def _rounding(quantized: Quantized, bits: int) -> Check:
    """Whether every quantized weight stands for the weight in its place."""
    # The integers reach from -2^(bits-1) to one less than 2^(bits-1): a largest weight of the
    # other sign is rounded to a whole step below.
    right = quantized.largest_step <= 1.01
    detail = (
        f"weights of {quantized.products} products in {bits} bits are within "
        f"{quantized.largest_step:.2f} steps of what they stand for"
    )
    figures = {"largest_step": quantized.largest_step, "products": quantized.products}
    return Check(name="quantized weights", passed=right, detail=detail, figures=figures)


def _require_passed(certificate: Certificate, not_checked: Sequence[str]) -> None:
    missing = [] if any(c.name == "parity" for c in certificate.checks) else [*not_checked]
    if certificate.passed and not missing:
        return
    wrong = [f"{c.name}: {c.detail}" for c in certificate.checks if c.passed is not True]
    raise CheckError(
        f"The quantized graph must pass every check, got {'; '.join([*wrong, *missing])}. No "
        "package was written."
    )
