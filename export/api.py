"""`export`: from torch to a checked package, or an error and nothing left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from causal_attn.attention.reference import causal_attention
from causal_attn.attention.spec import AttentionSpec
from causal_attn.errors import ProviderError, UsageError
from causal_attn.export.capture.sdpa import attention_calls
from causal_attn.export.capture.trace import capture
from causal_attn.export.choose.auto import Measuring, choose
from causal_attn.export.choose.choice import Choice
from causal_attn.export.choose.measure import MEASURE_LENGTHS
from causal_attn.export.decoder import is_language_model
from causal_attn.export.dims import Dims, Limits
from causal_attn.export.forms.table import choose_form
from causal_attn.export.target import Target, reference_target, user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.write.graph_file import check_graph, write_graph
from causal_attn.machine.provider import Provider
from causal_attn.package import Package, VariantSource, write_package
from causal_attn.package.certificate import Certificate
from causal_attn.package.contract import Contract
from causal_attn.package.dims import sizes_within
from causal_attn.package.write import require_free
from causal_attn.runtime import available_providers
from causal_attn.verify.checks.trial import require_lengths
from causal_attn.verify.feeds.feeder import LENGTHS

__all__ = ["DTYPES", "export"]

DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def export(
    target: nn.Module | AttentionSpec | Callable[..., Any],
    path: str | Path,
    *,
    form: str = "auto",
    providers: Sequence[str | Provider] = ("cpu",),
    dtype: str | torch.dtype | None = None,
    opset: int | None = None,
    example_inputs: Sequence[Tensor] | Mapping[str, Tensor] | None = None,
    dims: Dims | None = None,
    return_weights: bool = True,
    measure: bool = True,
    measure_lengths: Sequence[int] = MEASURE_LENGTHS,
    check_on: Sequence[str | Provider] | None = None,
    name: str | None = None,
    last_logits: bool = False,
    lengths: Sequence[int] = LENGTHS,
    on_step: Callable[[str], None] = lambda _: None,
) -> Package:
    """Write `target` as an ONNX Runtime model package that has passed every check.

    Args:
        target: `causal_attention`, an `AttentionSpec` (the reference op, configured), a causal
            language model of `transformers` (see docs/decoders.md), an ``nn.Module`` or a
            function. The reference op has inputs ``q``, ``k``, ``v``
            ``[batch, heads, tokens, features]`` (and ``past_key``, ``past_value`` with a dynamic
            cache) and outputs ``output``, ``weights`` (and ``present_key``, ``present_value``).
            With a static cache ``past_key``, ``past_value`` and the presents are buffers
            ``[batch, kv_heads, capacity, features]``, and ``past_lengths [batch]`` int64 says how
            many tokens each sequence has in them; the new ones are written after those and must
            fit. Other slots may hold anything, before the call and after it.
        path: Folder to write. An older package there is replaced, and only once all is well.
        form: How attention is written: ``decomposed``, ``attention``, ``gqa``, ``blocked`` or
            ``auto``, see `causal_attn.export.choose.auto`.
        providers: One variant of the package each.
        dtype: ``float32`` (the reference op's default), ``float16`` or ``float64``; for a module,
            default its own.
        opset: Of the ONNX domain; default the form's oldest.
        example_inputs: Of a module or function: tensors in the order of ``forward`` or by name,
            no tensor twice.
        dims: Which axes are dynamic: ``{"x": {0: "batch", 1: "tokens"}}`` or
            ``{"x": ("batch", "tokens", None)}``. One must be called ``tokens``. A name may carry
            bounds, ``"2<=tokens<=512"``; those of the target's own (a table of positions, an
            assertion) are found. Inputs called ``q``, ``k``, ``v`` or ``input_ids`` need none:
            their axes are dynamic as far as the code lets them.
        return_weights: Whether the reference op returns its weights.
        measure: Whether ``auto`` times the forms on this machine; if not, a fixed table decides,
            the same everywhere.
        measure_lengths: Tokens that ``auto`` times them at, ascending: the range of lengths that
            the package is for.
        check_on: Providers to check on; default each variant's own, which must then be installed.
        name: Of the package; default the name of `target`.
        last_logits: Of a language model: whether only the last token's logits come out.
        lengths: Tokens to check at; those outside the bounds of the tokens are left out.
        on_step: Called with a few words before each step.

    Returns:
        The package written.

    Raises:
        UsageError: An argument is wrong (`InputError`, `ProviderError`, `SpecError` name it).
        CaptureError: The target cannot be traced or written; the message names the log.
        CheckError: The graph was made and a check failed; nothing was left at `path`.
    """
    path = Path(path)
    require_free(path)
    require_lengths(lengths)
    variants = _parse_providers(providers)
    judges = _judges(variants, check_on)
    torch_dtype = _parse_dtype(dtype)
    if example_inputs is None and is_language_model(target):
        from causal_attn.export.decoder.target import decoder_target

        bound = decoder_target(target, dtype=torch_dtype, last_logits=last_logits)
    elif last_logits:
        raise UsageError("`last_logits` must be left out for a target that is no language model.")
    else:
        bound = _bind(target, example_inputs, dims, torch_dtype, return_weights)
    name = name or _name_of(target)
    if not measure_lengths or min(measure_lengths) < 1:
        raise UsageError(
            f"`measure_lengths` must be lengths >= 1, at least one, got {list(measure_lengths)}."
        )
    float_dtype = _float_dtype(bound)
    if form != "auto":
        for provider in variants:
            choose_form(form, bound.spec, float_dtype, provider, opset, return_weights)
    log = ExportLog()

    with tempfile.TemporaryDirectory(prefix="causal_attn-") as name_of_folder:
        folder = Path(name_of_folder)
        on_step("capture with torch.export")
        program, bound = capture(bound, log)
        limits = bound.limits.get("tokens", Limits())
        calls = attention_calls(program)
        if form not in ("auto", "decomposed") and not calls["attend"]:
            kept = ", ".join(calls["kept"]) or "no attention was found"
            raise UsageError(
                f"`form` must be 'auto' or 'decomposed' for a target whose attention stays as it "
                f"is written, got {form!r}: {kept}. Call scaled_dot_product_attention with "
                "is_causal=True, or causal_attn.attention.operator.attend."
            )
        written: dict[tuple[Any, ...], tuple[Path, Contract]] = {}
        certificates: dict[tuple[Any, ...], Certificate] = {}
        sources = []
        for provider in variants:
            judge = judges[provider]
            if form == "auto":
                choice, number = choose(
                    bound,
                    float_dtype,
                    provider,
                    opset,
                    return_weights=return_weights,
                    measuring=Measuring(
                        program=program,
                        folder=folder / f"measured-{provider}",
                        lengths=sizes_within(measure_lengths, limits.low, limits.high),
                        longest_check=max(lengths, default=1),
                        on_step=on_step,
                    )
                    if measure and judge is provider
                    else None,
                )
            else:
                used, number = choose_form(
                    form, bound.spec, float_dtype, provider, opset, return_weights
                )
                choice = Choice(forms=(used,))
            key = (choice.name, choice.last, number)
            if key not in written:
                on_step(f"write {choice.name} at opset {number}")
                target_folder = folder / str(len(written))
                written[key] = write_graph(program, bound, choice, number, target_folder, log)
            file, contract = written[key]
            judged = (*key, judge)
            if judged not in certificates:
                certificates[judged] = check_graph(
                    file, judge, bound, float_dtype, lengths, on_step
                )
            sources.append(
                VariantSource(
                    name=str(provider),
                    provider=provider,
                    model=file,
                    contract=contract,
                    certificate=certificates[judged],
                    companions=bound.companions,
                )
            )
        on_step("write the package")
        return write_package(path, name=name, variants=sources)


def _bind(
    target: nn.Module | AttentionSpec | Callable[..., Any],
    example_inputs: Sequence[Tensor] | Mapping[str, Tensor] | None,
    dims: Dims | None,
    dtype: torch.dtype | None,
    return_weights: bool,
) -> Target:
    is_reference = target is causal_attention
    if is_reference or isinstance(target, AttentionSpec):
        if example_inputs is not None or dims is not None:
            raise UsageError(
                "`example_inputs` and `dims` must be left out for the reference op, which has its "
                "own; wrap it in a function to export it with yours."
            )
        spec = target if isinstance(target, AttentionSpec) else AttentionSpec()
        return reference_target(spec, dtype=dtype or torch.float32, return_weights=return_weights)
    return user_target(target, example_inputs, dims, dtype=dtype)


def _parse_providers(providers: Sequence[str | Provider]) -> tuple[Provider, ...]:
    if isinstance(providers, str) or not providers:
        raise ProviderError(f"`providers` must be a sequence of names, got {providers!r}.")
    parsed = tuple(Provider.parse(provider) for provider in providers)
    if len(set(parsed)) != len(parsed):
        raise ProviderError(f"`providers` must be distinct, got {[str(p) for p in parsed]}.")
    return parsed


def _judges(
    variants: Sequence[Provider], check_on: Sequence[str | Provider] | None
) -> dict[Provider, Provider]:
    """Which provider checks which variant.

    Raises:
        ProviderError: A variant's provider is not installed and `check_on` does not say where to
            check its graph instead.
    """
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


def _parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    parsed = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if parsed not in DTYPES.values():
        remedy = (
            " ONNX Runtime's CPU provider has no bfloat16 kernels for attention; use float32."
            if dtype in ("bfloat16", torch.bfloat16)
            else ""
        )
        raise UsageError(f"`dtype` must be one of {list(DTYPES)}, got {str(dtype)!r}.{remedy}")
    return parsed


def _float_dtype(target: Target) -> torch.dtype:
    """The dtype attention runs in: of the first floating tensor that goes in or is held.

    Raises:
        UsageError: It is one that no provider here has kernels for.
    """
    held = (*target.examples.values(), *target.module.parameters())
    dtype = next((tensor.dtype for tensor in held if tensor.is_floating_point()), torch.float32)
    parsed = _parse_dtype(dtype)
    return parsed if parsed is not None else torch.float32


def _name_of(target: Any) -> str:
    if isinstance(target, AttentionSpec):
        return "causal_attention"
    found = getattr(target, "__name__", type(target).__name__)
    return found if found.isidentifier() else "model"
