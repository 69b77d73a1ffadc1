"""A graph that was written, checked on a provider against the target that it is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from causal_attn.errors import CheckError, EngineError, PackageError
from causal_attn.export.capture.captured import Captured
from causal_attn.export.capture.sdpa import PREFIX
from causal_attn.export.dims import Limits
from causal_attn.export.target import Target
from causal_attn.export.torch_runs import RAISES, yardstick
from causal_attn.machine.provider import Provider
from causal_attn.package import open_model
from causal_attn.package.certificate import Certificate
from causal_attn.verify.checks.all_checks import check_file, run_checks
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.interface.graph_lengths import graph_lengths
from causal_attn.verify.interface.runnable import find_reach
from causal_attn.verify.subject import read_subject
from causal_attn.verify.verdict import certify

__all__ = ["certify_graph"]

_FAR = 4
"""Times the longest length checked: no end beyond is run, for what it takes."""


def certify_graph(
    file: Path,
    provider: Provider,
    captured: Captured,
    lengths: Sequence[int],
    on_step: Callable[[str], None],
) -> Certificate:
    """The certificate of one graph that passes every check on one provider.

    It is checked at those of `lengths` that the target takes, and where its tables end.

    Raises:
        CheckError: One of them did not pass.
        UsageError: `lengths` are none.
    """
    subject = read_subject(open_model(file))
    feeder = replace(subject.interface.feeder, bounds=captured.target.bounds)
    subject = replace(subject, interface=replace(subject.interface, feeder=feeder))
    try:
        # The file lies in a folder of this export's own, where nothing changes it.
        session = subject.open(provider, weights="map")
    except (PackageError, EngineError) as error:
        raise CheckError(
            f"The exported graph must load on {provider}, got: {error}. No package was written."
        ) from None
    marks = graph_lengths(subject.model)
    with session:
        trial = Trial(
            session=session,
            feeder=feeder,
            interface=subject.interface,
            yardstick=yardstick(captured.target),
            lengths=(*lengths, *_ends(captured.target, lengths)),
            marks=marks.all,
        )
        if subject.interface.fixed_tokens is None:
            reach, _ = find_reach(session, subject.interface, trial.longest, marks)
            trial = replace(trial, reach=reach)
        subject = replace(subject, positions=trial.longest)
        checks = (*check_file(subject, on_step), *run_checks(trial, on_step))
    certificate = certify(subject, checks)
    if not certificate.passed:
        wrong = [f"{c.name}: {c.detail}" for c in certificate.checks if c.passed is not True]
        remedy = (
            " `dtype` float64 holds only where ONNX keeps no constant in an attribute, which has "
            "32 bits (an epsilon, a scale): export in float32."
            if captured.dtype is torch.float64
            else ""
        )
        if certificate.score_bound is not None:
            remedy += (
                " A finite number is added or set where the future is, and scores may be larger: "
                "write float('-inf') or torch.finfo(scores.dtype).min."
            )
        for kept in captured.calls["kept"]:
            if PREFIX in kept:
                remedy += (
                    f" {kept}: what sees a prefix whole is not causal from its first token on."
                )
        if any(RAISES in detail for detail in wrong):
            remedy += (
                " The code itself, in eager torch, raises at that length. If such lengths are not "
                "meant, bound them in `dims`, as in '2<=tokens<=512'."
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
