"""Whether what an earlier use left in the slots of a cache reaches a result.

A mask keeps a token out by a weight of 0, and 0 times NaN or infinity is NaN. Where a module is
held against its own run in PyTorch, both have the NaN, so that parity says nothing about it.
"""

from __future__ import annotations

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import in_words
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.cache_slots import blank_unused, fill_unused, has_buffers

__all__ = ["check_unused_slots"]

_NAME = "unused slots are not read"


def check_unused_slots(trial: Trial) -> Check | None:
    """Garbage in the slots that hold no token, then 0: results must be bitwise equal.

    ``None`` for a graph without a cache of fixed capacity.
    """
    feeder, session = trial.feeder, trial.session
    contract = feeder.contract
    if not has_buffers(contract):
        return None
    rng = trial.rng(_NAME)
    for sizes in feeder.cases(sorted({trial.length(1), trial.length(5)})):
        left = feeder.make(sizes, rng)
        clean = {name: array.copy() for name, array in left.items()}
        fill_unused(contract, clean, None)
        base, other = (
            blank_unused(contract, feeds, session.run(feeds)) for feeds in (clean, left)
        )
        read = [name for name in base if base[name].tobytes() != other[name].tobytes()]
        if read:
            detail = (
                f"{read} change with what lies in slots that hold no token ({in_words(sizes)})"
            )
            return trial.result(_NAME, False, detail)
    assert contract.cache is not None  # it has buffers
    garbage = "large finite numbers" if contract.cache.finite else "NaN, infinity"
    return trial.result(_NAME, True, f"{garbage} or 0 in slots that hold no token: no change")
