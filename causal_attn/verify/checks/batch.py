"""Whether the sequences of a batch are independent of each other."""

from __future__ import annotations

import numpy as np

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import HUGE
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.cache_slots import blank_unused

__all__ = ["check_batch_is_independent"]

_NAME = "batch is independent"


def check_batch_is_independent(trial: Trial) -> Check | None:
    """Change one sequence of a batch of two; the other must not change in a single bit.

    ``None`` where no input has a dim ``batch`` that may be 2.
    """
    feeder, session = trial.feeder, trial.session
    axes = {
        tensor.name: tensor.dims.index("batch")
        for tensor in (*feeder.contract.inputs, *feeder.contract.outputs)
        if "batch" in tensor.dims
    }
    if feeder.pinned.get("batch", 2) < 2 or not any(
        tensor.name in axes for tensor in feeder.contract.inputs
    ):
        return None
    rng = trial.rng(_NAME)
    (sizes,) = feeder.cases((trial.length(9),))
    feeds = feeder.make({**sizes, "batch": 2}, rng)
    changed = {}
    for tensor in feeder.contract.inputs:
        array = feeds[tensor.name].copy()
        if tensor.name in axes and tensor.name not in feeder.fixed:
            # With an index of one row, not the row: of one axis that would be a scalar.
            second = np.moveaxis(array, axes[tensor.name], 0)[1:2]
            second[...] = feeder.other(tensor, second, HUGE, rng)
        changed[tensor.name] = array
    base, other = (
        blank_unused(feeder.contract, given, session.run(given)) for given in (feeds, changed)
    )
    mixed = [
        name
        for name in base
        if name in axes
        and np.take(base[name], 0, axes[name]).tobytes()
        != np.take(other[name], 0, axes[name]).tobytes()
    ]
    detail = (
        f"{mixed} of one sequence change with another sequence of the batch"
        if mixed
        else "another sequence of the batch changes nothing"
    )
    return trial.result(_NAME, not mixed, detail)
