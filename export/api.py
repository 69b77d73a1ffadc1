"""`export`: from torch to a checked package, or an error and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from causal_attn.attention.reference import causal_attention
from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import UsageError
from causal_attn.export.capture.captured import Captured
from causal_attn.export.capture.device import require_cpu
from causal_attn.export.choose.auto import Measuring, choose
from causal_attn.export.choose.choice import Choice
from causal_attn.export.choose.measure import MEASURE_LENGTHS
from causal_attn.export.decoder import is_language_model
from causal_attn.export.dims import Dims, Limits
from causal_attn.export.dtypes import float_dtype, parse_dtype
from causal_attn.export.forms.table import choose_form
from causal_attn.export.judges import judging_providers
from causal_attn.export.target import LARGE_BYTES, Target, reference_target, user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.variants import Variants
from causal_attn.machine.provider import Provider
from causal_attn.package import Package, write_package
from causal_attn.package.dims import sizes_within
from causal_attn.package.write import require_free
from causal_attn.verify.checks.trial import require_lengths
from causal_attn.verify.feeds.feeder import LENGTHS

__all__ = ["FEW_LENGTHS", "export"]

FEW_LENGTHS = (1, 2, 5, 13, 33)
"""Tokens that a large model is checked at."""

DECODER_OPSET = 23
"""The oldest with rotary embeddings and RMS norms as one node each."""


# The one call that users make: each keyword is an option of theirs, most are left out.
def export(
    target: nn.Module | AttentionSpec | ExportedProgram | Callable[..., Any],
    path: str | Path,
    *,
    form: str = "auto",
    providers: Sequence[str | Provider] = ("cpu",),
    dtype: str | torch.dtype | None = None,
    opset: int | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dims: Dims | None = None,
    return_weights: bool = True,
    measure: bool = True,
    measure_lengths: Sequence[int] = MEASURE_LENGTHS,
    check_on: Sequence[str | Provider] | None = None,
    name: str | None = None,
    last_logits: bool = False,
    output_attentions: bool = False,
    cache: str | CacheKind | None = None,
    lengths: Sequence[int] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Package:
    """Write `target` as an ONNX Runtime model package that has passed every check.

    Args:
        target: `causal_attention`, an `AttentionSpec` (the reference op, configured), a causal
            language model of `transformers` (see docs/decoders.md), an ``nn.Module``, a function
            or an ``ExportedProgram``, which has examples and dims of its own. The reference op
            has inputs ``q``, ``k``, ``v``
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
        opset: Of the ONNX domain; default the form's oldest, of a language model
            `DECODER_OPSET`.
        example_inputs: Of a module or function: tensors in the order of ``forward`` or by name,
            no tensor twice. Numbers, words, truth values and ``None`` among them are bound to
            what they are, like the defaults of what is left out: ``contract.arguments``.
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
        output_attentions: Of a language model: whether the weights of every layer come out,
            ``attentions.N`` ``[batch, heads, tokens, past_tokens + tokens]``.
        cache: Of a language model: ``dynamic``, the default, which grows, or ``static``, buffers
            of fixed capacity that are written in place; see docs/decoders.md. ``growing`` and
            ``fixed``, the words of a contract, are the same two.
        lengths: Tokens to check at; those outside the bounds of the tokens are left out. Default
            `LENGTHS`, to 257; for a model of more than 256 MiB `FEW_LENGTHS`, to 33, since its
            float64 run takes minutes at others.
        on_step: Called with a few words before each step.

    Returns:
        The package written.

    Raises:
        UsageError: An argument is wrong, or a tensor of the target is not on the CPU
            (`InputError`, `ProviderError`, `SpecError` name it).
        CaptureError: The target cannot be traced or written; the message names the log.
        CheckError: The graph was made and a check failed; nothing was left at `path`.
    """
    path = Path(path)
    require_free(path)
    require_lengths(FEW_LENGTHS if lengths is None else lengths)
    judges = judging_providers(providers, check_on)
    wanted: dict[str, Any] = {
        "last_logits": last_logits,
        "output_attentions": output_attentions,
    }
    if cache is not None:
        wanted["cache"] = _cache_kind(cache)
    bound = _bind(target, example_inputs, dims, parse_dtype(dtype), return_weights, wanted)
    attention_dtype = float_dtype(bound)
    if opset is None and bound.reference is not None:
        opset = DECODER_OPSET
    if lengths is None:
        lengths = FEW_LENGTHS if bound.weight_bytes > LARGE_BYTES else LENGTHS
    if not measure_lengths or min(measure_lengths) < 1:
        raise UsageError(
            f"`measure_lengths` must be lengths >= 1, at least one, got {list(measure_lengths)}."
        )

    def choose_for(provider: Provider, measuring: Measuring | None) -> tuple[Choice, int]:
        if form == "auto":
            return choose(
                bound,
                attention_dtype,
                provider,
                opset,
                return_weights=return_weights,
                measuring=measuring,
            )
        used, number = choose_form(
            form, bound.spec, attention_dtype, provider, opset, return_weights
        )
        return Choice(forms=(used,)), number

    if form != "auto":
        for provider in judges:
            choose_for(provider, None)

    with tempfile.TemporaryDirectory(prefix="causal_attn-") as folder, _room_in(folder):
        on_step("capture with torch.export")
        captured = Captured.of(bound, attention_dtype, ExportLog())
        _refuse_form_without_use(form, captured)
        limits = captured.target.limits.get("tokens", Limits())
        variants = Variants(captured, Path(folder), lengths, on_step)
        for provider, judge in judges.items():
            measuring = Measuring(
                captured=captured,
                folder=Path(folder) / f"measured-{provider}",
                lengths=sizes_within(measure_lengths, limits.low, limits.high),
                longest_check=max(lengths),
                on_step=on_step,
            )
            measurable = measure and judge is provider
            choice, number = choose_for(provider, measuring if measurable else None)
            variants.add(provider, judge, choice, number)
        on_step("write the package")
        return write_package(path, name=name or _name_of(target), variants=variants.sources)


@contextlib.contextmanager
def _room_in(folder: str) -> Iterator[None]:
    """Say in our words that the graphs do not fit where they are written on the way."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(
            f"The folder of temporary files must have room for the graph, got {folder}: "
            f"{error.strerror}. Set TMPDIR to another, or raise the limit."
        ) from None


def _refuse_form_without_use(form: str, captured: Captured) -> None:
    """Refuse a form asked for by name where no attention would be written in it."""
    if form not in ("auto", "decomposed") and not captured.calls["attend"]:
        kept = ", ".join(captured.calls["kept"]) or "no attention was found"
        raise UsageError(
            f"`form` must be 'auto' or 'decomposed' for a target whose attention stays as it "
            f"is written, got {form!r}: {kept}. Call scaled_dot_product_attention with "
            "is_causal=True, or causal_attn.attention.operator.attend."
        )


def _bind(
    target: nn.Module | AttentionSpec | ExportedProgram | Callable[..., Any],
    example_inputs: Sequence[Any] | Mapping[str, Any] | None,
    dims: Dims | None,
    dtype: torch.dtype | None,
    return_weights: bool,
    wanted: Mapping[str, Any],
) -> Target:
    if example_inputs is None and is_language_model(target):
        from causal_attn.export.decoder.target import decoder_target

        require_cpu(target, None)
        return decoder_target(target, dtype=dtype, **wanted)
    if set_for_nothing := [name for name, value in wanted.items() if value]:
        raise UsageError(
            f"`{set_for_nothing[0]}` must be left out for a target that is no language model."
        )
    if target is causal_attention or isinstance(target, AttentionSpec):
        if example_inputs is not None or dims is not None:
            raise UsageError(
                "`example_inputs` and `dims` must be left out for the reference op, which has its "
                "own; wrap it in a function to export it with yours."
            )
        spec = target if isinstance(target, AttentionSpec) else AttentionSpec()
        return reference_target(spec, dtype=dtype or torch.float32, return_weights=return_weights)
    require_cpu(target, example_inputs)
    return user_target(target, example_inputs, dims, dtype=dtype)


def _cache_kind(given: str | CacheKind) -> CacheKind:
    words = {
        "dynamic": CacheKind.DYNAMIC, "growing": CacheKind.DYNAMIC,
        "static": CacheKind.STATIC, "fixed": CacheKind.STATIC,
    }  # fmt: skip
    if given not in words:
        raise UsageError(
            f"`cache` must be one of {list(words)} for a language model, got {given!r}."
        )
    return words[given]


def _name_of(target: Any) -> str:
    if isinstance(target, AttentionSpec):
        return "causal_attention"
    found = getattr(target, "__name__", type(target).__name__)
    return found if found.isidentifier() else "model"
