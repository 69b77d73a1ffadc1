"""Every check there is, in the order in which they run: what a new check is added to.

`OF_THE_FILE` needs no provider, `OF_RUNS` runs the graph. Both are what `export` asks of a graph
it wrote and what `verify` asks of any. This module needs no onnx; the checks of a file do when
they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.batch import check_batch_is_independent
from causal_attn.verify.checks.decode import check_decode
from causal_attn.verify.checks.future import FUTURE, check_future_is_invisible
from causal_attn.verify.checks.inputs_read import check_inputs_are_read
from causal_attn.verify.checks.large_inputs import check_large_inputs
from causal_attn.verify.checks.other_values import OTHER_VALUES, check_other_values
from causal_attn.verify.checks.padding import PADDING, check_padding
from causal_attn.verify.checks.parity import check_parity
from causal_attn.verify.checks.past import check_past_matters
from causal_attn.verify.checks.placement import check_placement
from causal_attn.verify.checks.prefix import check_prefixes_agree
from causal_attn.verify.checks.proof import (
    BATCH_PROOF,
    PROOF,
    check_batch_proof,
    check_proof,
)
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.checks.unused_slots import check_unused_slots
from causal_attn.verify.checks.weights import check_weights
from causal_attn.verify.checks.window import check_window

if TYPE_CHECKING:
    from causal_attn.verify.subject import Subject

__all__ = ["OF_RUNS", "OF_THE_FILE", "check_file", "run_checks"]

OF_THE_FILE: dict[str, Callable[[Subject], Check | None]] = {
    "inputs are read": check_inputs_are_read,
    PROOF: check_proof,
    BATCH_PROOF: check_batch_proof,
}

OF_RUNS: dict[str, Callable[[Trial], Check | None]] = {
    "placement": check_placement,
    "parity": check_parity,
    "prefixes agree": check_prefixes_agree,
    "large inputs": check_large_inputs,
    FUTURE: check_future_is_invisible,
    OTHER_VALUES: check_other_values,
    "past matters": check_past_matters,
    "batch is independent": check_batch_is_independent,
    "window": check_window,
    "weights": check_weights,
    "unused slots are not read": check_unused_slots,
    "decode is equivalent": check_decode,
    PADDING: check_padding,
}
"""A check gives ``None`` where there is nothing for it to check."""


def check_file(
    subject: Subject, on_check: Callable[[str], None] = lambda _: None
) -> tuple[Check, ...]:
    """`OF_THE_FILE`, of `subject`.

    Args:
        subject: A graph that may not even load.
        on_check: Called with the name of each check before it runs.
    """
    checks = []
    for name, check in OF_THE_FILE.items():
        on_check(name)
        checks.append(check(subject))
    return tuple(found for found in checks if found is not None)


def run_checks(
    trial: Trial, on_check: Callable[[str], None] = lambda _: None
) -> tuple[Check, ...]:
    """`OF_RUNS`, of `trial`; a graph that does not run where it should ends them.

    Args:
        trial: A graph that loads.
        on_check: Called with a few words before each check.
    """
    checks: list[Check] = []
    for name, check in OF_RUNS.items():
        on_check(f"{name} on {trial.session.provider}")
        try:
            result = check(trial)
        except CausalAttnError as error:
            result = trial.did_not_run("runs", f"does not run for the check {name!r}: {error}")
        if result is None:
            continue
        checks.append(result)
        if not result.ran:
            break
    return tuple(checks)
