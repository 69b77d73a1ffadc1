"""``form="auto"``: which form is used up to how many tokens, by measurement or by a fixed table.

Only forms that may be used and that passed their checks take part;
`causal_attn.export.choose.measure` times them on the target's provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import CaptureError, CheckError, EngineError, ProviderError
from causal_attn.export.capture.captured import Captured
from causal_attn.export.choose import measure
from causal_attn.export.choose.choice import Choice
from causal_attn.export.forms.blocked import blocked
from causal_attn.export.forms.table import FORMS, Form, choose_form
from causal_attn.export.target import Target
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.write.certified import certify_graph
from causal_attn.export.write.graph_file import write_graph
from causal_attn.machine.provider import Provider
from causal_attn.package.contract import TensorContract

__all__ = ["Measuring", "candidates", "choose", "fixed_choice"]

OPSET = 23
"""All branches of a switch have one opset: the oldest with ``Attention``."""

CHECK_LENGTHS = (1, 2, 3, 7, 33, 65, 129, 257)
"""Tokens that a candidate is checked at; the graph that is chosen is checked at all of them."""


@dataclass(frozen=True)
class Measuring:
    """What is needed to write, check and time candidates.

    Attributes:
        captured: What they are written from.
        folder: Made, and filled with them.
        lengths: Tokens to time at.
        longest_check: Tokens that checks may run at: a module may have a table of positions.
        on_step: Called with a few words before each step.
    """

    captured: Captured
    folder: Path
    lengths: Sequence[int]
    longest_check: int
    on_step: Callable[[str], None]


def choose(
    target: Target,
    dtype: torch.dtype,
    provider: Provider,
    opset: int | None,
    *,
    return_weights: bool,
    measuring: Measuring | None,
) -> tuple[Choice, int]:
    """The forms of `target` on `provider`, and the opset to write them at.

    An op that returns its weights stays ``decomposed``: of the forms that return weights it is the
    only one that is right for every dtype, window and provider. A module of the user's is measured
    as a whole and gets one form for all lengths, since a switch would hold its weights twice; not
    measured, it stays ``decomposed``.

    Args:
        target: What is exported.
        dtype: Its floating point dtype.
        provider: Where it is to run.
        opset: What the caller asked for.
        return_weights: Whether the weights are wanted.
        measuring: To measure on `provider`; ``None``: the fixed table decides, as it does while
            the machine is busy with other work.

    Raises:
        UsageError: No form can be written at `opset`.
    """
    number = OPSET if opset is None else opset
    usable: dict[str, Form] = {}
    refused: dict[str, str] = {}
    if target.spec is None and measuring is not None:
        # What no attention was captured of is the same in every form.
        measured = measuring.captured.calls["attend"]
    else:
        measured = target.spec is not None and not return_weights
    if measured:
        usable, refused = candidates(target.spec, dtype, provider, number)
    if target.spec is None:
        # Whether the claim holds always must not depend on how busy a machine was.
        for name in [name for name, form in usable.items() if form.finite_mask]:
            refused[name] = (
                f"form {name!r} hides only while scores are bounded: ask for it by name"
            )
            del usable[name]
    if set(usable) <= {"decomposed"}:
        form, number = choose_form("decomposed", target.spec, dtype, provider, opset)
        rule = "decomposed runs on every provider"
        return Choice(forms=(form,), reason={"rule": rule}), number
    if target.spec is not None and target.spec.cache is CacheKind.STATIC:
        # Of the two only this one writes in place, which no timing of unbound calls shows.
        reason = {"rule": "gqa writes a cache of fixed capacity in place"}
        return Choice(forms=(usable["gqa"],), reason=reason), number
    busy = measure.busy() if measuring is not None else ""
    if measuring is None or busy:
        choice = fixed_choice(usable if target.spec is not None else {}, provider)
        if busy:
            choice = replace(choice, reason={"rule": f"fixed table: {busy}"})
    else:
        choice = _measured(usable, refused, provider, number, measuring)
    if choice.name == "decomposed":
        number = choose_form("decomposed", target.spec, dtype, provider, opset)[1]
    return choice, number


def _measured(
    usable: Mapping[str, Form],
    refused: dict[str, str],
    provider: Provider,
    opset: int,
    measuring: Measuring,
) -> Choice:
    """Write and check every candidate, then time those that passed."""
    captured = replace(measuring.captured, log=ExportLog(kept=False))
    spec = captured.target.spec
    measuring.folder.mkdir()
    cores, load = measure.cores(), measure.load()
    usable = {name: blocked(cores) if name == "blocked" else form for name, form in usable.items()}
    lengths = [length for length in CHECK_LENGTHS if length <= measuring.longest_check]
    passed: dict[str, Path] = {}
    inputs: tuple[TensorContract, ...] = ()
    for name, form in usable.items():
        measuring.on_step(f"write and check {name}")
        alone = Choice(forms=(form,))
        folder = measuring.folder / name
        try:
            file, contract = write_graph(captured, alone, opset, folder)
            certify_graph(file, provider, captured, lengths, lambda _: None)
        except (CaptureError, CheckError, EngineError, ProviderError) as error:
            refused[name] = str(error)
            continue
        passed[name] = file
        inputs = contract.inputs
    if not passed:
        # The final check says what is wrong.
        return Choice(forms=(FORMS["decomposed"],), reason={"refused": refused})
    times = measure.time_models(
        passed, inputs, spec, provider, measuring.lengths, measuring.on_step
    )
    if not any(times.values()):
        rule = f"decomposed, not measured: nothing runs at {list(measuring.lengths)} tokens"
        return Choice(forms=(FORMS["decomposed"],), reason={"rule": rule, "refused": refused})
    most = len(passed) if spec is not None else 1
    choice = measure.measured_choice(usable, times, provider, refused, most_forms=most)
    return replace(choice, reason={**choice.reason, "cores": cores, "load": load})


def candidates(
    spec: AttentionSpec | None,
    dtype: torch.dtype,
    provider: Provider,
    opset: int,
) -> tuple[dict[str, Form], dict[str, str]]:
    """Forms that may be used, and those that may not with the reason."""
    usable, refused = {}, {}
    for name, form in FORMS.items():
        reason = form.refusal(spec, dtype, provider, opset)
        if reason is None:
            usable[name] = form
        else:
            refused[name] = reason
    return usable, refused


def fixed_choice(usable: Mapping[str, Form], provider: Provider) -> Choice:
    """The choice without measuring; the same on every machine.

    From these ratios to torch SDPA, two Zen 4 cores, 16 heads of 64, float32: at 64, 128, 192,
    256, 512, 1,024 and 2,048 tokens ``attention`` has 2.0, 1.9, 1.7, 1.3, 1.1, 0.7, 0.5 and
    ``blocked`` 0.8, 1.1, 1.3, 1.4, 1.7, 1.2, 1.2.
    """
    rule = "fixed table, not measured"
    if provider is Provider.CPU and "blocked" in usable:
        short = usable.get("attention", FORMS["decomposed"])
        last = 192 if "attention" in usable else 128
        return Choice(forms=(short, usable["blocked"]), last=(last,), reason={"rule": rule})
    return Choice(forms=(FORMS["decomposed"],), reason={"rule": rule})
