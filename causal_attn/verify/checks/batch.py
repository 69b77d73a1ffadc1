"""Whether the sequences of a batch are independent of each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import HUGE, Results, in_words
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.cache_slots import blank_unused
from causal_attn.verify.feeds.feeder import Feeds, Sizes

__all__ = ["check_batch_is_independent"]

_NAME = "batch is independent"

_BATCHES = (2, 3, 5)
"""A fault may need neighbours on both sides, or a batch that no power of two divides."""


def check_batch_is_independent(trial: Trial) -> Check | None:
    """Change each sequence of a batch in turn; no other may change in a single bit.

    Batches of `_BATCHES`, without a past and behind one. ``None`` where no input has a dim
    ``batch`` that may be 2.
    """
    feeder, session = trial.feeder, trial.session
    batched = any("batch" in tensor.dims for tensor in feeder.contract.inputs)
    if feeder.pinned.get("batch", 2) < 2 or not batched:
        return None
    rng = trial.rng(_NAME)
    (one,) = feeder.cases((trial.length(9),))
    axes: dict[str, int] = {}
    for sizes in (_sized(trial, one, batch) for batch in _BATCHES):
        feeds = feeder.make(sizes, rng)
        base = blank_unused(feeder.contract, feeds, session.run(feeds))
        axes = _axes(trial, base, sizes)
        for item in range(sizes["batch"]):
            changed = _changed(trial, feeds, item, rng)
            other = blank_unused(feeder.contract, changed, session.run(changed))
            if mixed := _mixed(base, other, axes, item):
                detail = (
                    f"{sorted(mixed)} of sequence {min(mixed.values())} change with sequence "
                    f"{item} of the batch ({in_words(sizes)})"
                )
                return trial.result(_NAME, False, detail)
    words = ", ".join(map(str, _BATCHES[:-1])) + f" and {_BATCHES[-1]}"
    detail = f"each sequence of batches of {words} in turn changes nothing of the others"
    unseen = [tensor.name for tensor in feeder.contract.outputs if tensor.name not in axes]
    if unseen:
        detail += f"; {unseen} have no axis of sequences"
    return trial.result(_NAME, True, detail, batches=list(_BATCHES), outputs=sorted(axes))


def _sized(trial: Trial, sizes: Sizes, batch: int) -> Sizes:
    """`sizes` at a batch; a batch of 3 goes on from a past, if the graph has one."""
    feeder = trial.feeder
    behind = batch == 3 and "past_tokens" in sizes and "past_tokens" not in feeder.pinned
    past = {"past_tokens": 7} if behind else {}
    tokens = feeder.contract.tokens
    few = {tokens: trial.length(1)} if behind and feeder.single_past else {}
    return {**sizes, **past, **few, "batch": batch}


def _axes(trial: Trial, results: Results, sizes: Sizes) -> dict[str, int]:
    """The axis of sequences of each output: by its name, else the one that is as long alone."""
    axes = {}
    for tensor in trial.feeder.contract.outputs:
        if "batch" in tensor.dims:
            axes[tensor.name] = tensor.dims.index("batch")
            continue
        shape = results[tensor.name].shape
        free = [axis for axis, dim in enumerate(tensor.dims) if isinstance(dim, str)]
        found = [axis for axis in free if axis < len(shape) and shape[axis] == sizes["batch"]]
        if len(found) == 1:
            axes[tensor.name] = found[0]
    return axes


def _changed(trial: Trial, feeds: Feeds, item: int, rng: np.random.Generator) -> Feeds:
    """`feeds` with other values in one sequence."""
    feeder = trial.feeder
    changed = {}
    for tensor in feeder.contract.inputs:
        array = feeds[tensor.name].copy()
        if "batch" in tensor.dims and tensor.name not in feeder.fixed:
            # With an index of one row, not the row: of one axis that would be a scalar.
            one = np.moveaxis(array, tensor.dims.index("batch"), 0)[item : item + 1]
            one[...] = feeder.other(tensor, one, HUGE, rng)
        changed[tensor.name] = array
    return changed


def _mixed(base: Results, other: Results, axes: Mapping[str, int], item: int) -> dict[str, int]:
    """Outputs in which a sequence besides `item` differs, and the first that does."""
    mixed: dict[str, int] = {}
    for name, axis in axes.items():
        old, new = np.moveaxis(base[name], axis, 0), np.moveaxis(other[name], axis, 0)
        for row in range(len(old)):
            if row != item and old[row].tobytes() != new[row].tobytes():
                mixed.setdefault(name, row)
    return mixed
