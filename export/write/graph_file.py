"""One graph of a target: written to a file with its contract, and checked on a provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

from causal_attn.errors import CheckError, EngineError, PackageError
from causal_attn.export.capture.sdpa import attention_calls
from causal_attn.export.choose.choice import Choice
from causal_attn.export.dims import Limits
from causal_attn.export.target import Target
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.torch_runs import yardstick
from causal_attn.export.write.cache import cache_of
from causal_attn.export.write.onnx_model import lower, save_model, tensor_contracts
from causal_attn.export.write.required_runtime import oldest_onnxruntime
from causal_attn.export.write.switch import switch
from causal_attn.machine.provider import Provider
from causal_attn.package import open_model
from causal_attn.package.certificate import Certificate
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CONTRACT_KEY, write_metadata
from causal_attn.verify.checks.all_checks import check_file, run_checks
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.subject import read_subject
from causal_attn.verify.verdict import certify

__all__ = ["check_graph", "write_graph"]

_FAR = 4
"""Times the longest length checked: no end beyond is run, for what it takes."""


def write_graph(
    program: ExportedProgram,
    target: Target,
    choice: Choice,
    opset: int,
    folder: Path,
    log: ExportLog,
) -> tuple[Path, Contract]:
    """Write `program` with attention in the forms of `choice`, into a new `folder`.

    Returns:
        The model's file and its contract, which is inside the file too.

    Raises:
        CaptureError: torch.onnx cannot write the program; see `lower`.
    """
    models = [lower(program, target, form, opset, log) for form in choice.forms]
    names = [form.name for form in choice.forms]
    model = models[0] if len(models) == 1 else switch(models, names, choice.last)
    folder.mkdir()
    file = folder / "model.onnx"
    save_model(model, file)
    calls = attention_calls(program)
    reason = choice.to_dict() | ({} if target.spec is not None else {"captured": calls})
    inputs, outputs = tensor_contracts(model.graph.inputs), tensor_contracts(model.graph.outputs)
    contract = Contract(
        inputs=inputs,
        outputs=outputs,
        form=choice.name if calls["attend"] else "captured",
        opset=opset,
        spec=target.spec,
        cache=cache_of(target.spec, inputs, outputs),
        bounds={dim: (limits.low, limits.high) for dim, limits in target.limits.items()},
        arguments=target.constants,
        choice=reason,
        onnxruntime=oldest_onnxruntime(model),
    )
    write_metadata(file, {CONTRACT_KEY: contract.to_json()})
    return file, contract


def check_graph(
    file: Path,
    provider: Provider,
    target: Target,
    dtype: torch.dtype,
    lengths: Sequence[int],
    on_step: Callable[[str], None],
) -> Certificate:
    """Every check of one graph on one provider, at those of `lengths` that the target takes.

    Raises:
        CheckError: One of them did not pass.
        UsageError: `lengths` are none.
    """
    subject = read_subject(open_model(file))
    feeder = replace(subject.interface.feeder, bounds=target.bounds)
    subject = replace(subject, interface=replace(subject.interface, feeder=feeder))
    try:
        session = subject.open(provider)
    except (PackageError, EngineError) as error:
        raise CheckError(
            f"The exported graph must load on {provider}, got: {error}. No package was written."
        ) from None
    with session:
        trial = Trial(
            session=session,
            feeder=feeder,
            interface=subject.interface,
            yardstick=yardstick(target),
            lengths=(*lengths, *_ends(target, lengths)),
        )
        checks = (*check_file(subject, on_step), *run_checks(trial, on_step))
    certificate = certify(subject, checks)
    if not certificate.passed:
        wrong = [f"{c.name}: {c.detail}" for c in certificate.checks if c.passed is not True]
        remedy = (
            " `dtype` float64 holds only where ONNX keeps no constant in an attribute, which has "
            "32 bits (an epsilon, a scale): export in float32."
            if dtype is torch.float64
            else ""
        )
        raise CheckError(
            f"The exported graph must pass every check on {provider}, got {'; '.join(wrong)}. "
            f"No package was written.{remedy}"
        )
    return certificate


def _ends(target: Target, lengths: Sequence[int]) -> list[int]:
    """Numbers of tokens to check at besides `lengths`: the last ones, where tables end."""
    high = target.limits.get("tokens", Limits()).high
    near = high is not None and high <= _FAR * max(lengths, default=1)
    return [*target.untraced, *([high] if near and high is not None else [])]
