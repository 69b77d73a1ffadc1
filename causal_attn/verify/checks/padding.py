"""Whether padding is invisible: a shorter sequence padded beside a longer one.

Through an attention mask ``[batch, tokens]`` that is 0 for padding, a batch of two is run: one
sequence fills it, the other is padded, on the right and on the left. What lies in the padding must
not change the other rows in a single bit, and these rows must be those of the sequence alone,
within the rounding that the graph shows at other lengths or that honest runs show.

Right padding is the future of a causal graph and must hold. Left padding must hold for a graph
that takes position ids, which then leave the padding out; a graph that counts positions itself
counts the padding, and `GroupQueryAttention` knows lengths only, so that what it masks is always
on the right. What holds is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import HUGE
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.agreement import agreement
from causal_attn.verify.compare.rounding import largest_difference, rounding_budget
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.interface.naming import BATCH, PAST, TOKENS, continues_cache

if TYPE_CHECKING:
    from causal_attn.verify.interface.discover import Interface

__all__ = ["PADDING", "check_padding"]

PADDING = "padding is invisible"
_LENGTH, _SHORT = 11, 6


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One way to pad: which rows of the shorter sequence are real."""

    name: str
    real: slice


_SIDES = (
    _Side(name="right", real=slice(0, _SHORT)),
    _Side(name="left", real=slice(_LENGTH - _SHORT, _LENGTH)),
)


def check_padding(trial: Trial) -> Check | None:
    """Pad a sequence on either side; ``None`` for a graph with no mask or only one size."""
    interface, feeder = trial.interface, trial.feeder
    free = not {TOKENS, BATCH, PAST} & set(feeder.pinned)
    if interface is None or interface.mask is None or not free:
        return None
    if interface.rowless:
        return _of_all_tokens(trial, interface)
    if not feeder.watched():
        return None
    prober = _Prober(trial, interface)
    found: dict[str, str] = {}
    figures: dict[str, dict[str, float]] = {}
    try:
        for side in _SIDES:
            found[side.name], figures[side.name] = prober.fault(side)
    except CausalAttnError as error:
        detail = f"two sequences of {_LENGTH} tokens do not run with a mask: {error}"
        return trial.result(PADDING, None, detail)
    right, left = found["right"], found["left"]
    lengths_only = any(node.op_type == "GroupQueryAttention" for node in trial.session.placement)
    promised = interface.positions is not None and not lengths_only
    passed = not right and not (left and promised)
    sides = [f"on the {side} {fault or 'nothing of it is seen'}" for side, fault in found.items()]
    return trial.result(PADDING, passed, "; ".join(sides), **figures)


def _of_all_tokens(trial: Trial, interface: Interface) -> Check:
    """Results of all tokens: of none but the real ones, on one side at least.

    A last token is the last real one where padding is on the left; a result that looks its row up
    by the mask is right on both sides.
    """
    prober = _Prober(trial, interface)
    seen: dict[str, list[str]] = {}
    for side in _SIDES:
        padded = prober.padded(side)
        one, other = (
            trial.session.run(feeds) for feeds in (padded, prober.refilled(padded, side))
        )
        batch = {
            t.name: t.dims.index(BATCH) for t in trial.feeder.contract.outputs if BATCH in t.dims
        }
        seen[side.name] = [
            name
            for name, axis in batch.items()
            if np.take(one[name], 1, axis).tobytes() != np.take(other[name], 1, axis).tobytes()
        ]
    sides = [
        f"on the {side} " + (f"{names} change with it" if names else "nothing of it is seen")
        for side, names in seen.items()
    ]
    return trial.result(PADDING, not all(seen.values()), "; ".join(sides))


class _Prober:
    def __init__(self, trial: Trial, interface: Interface) -> None:
        self.trial, self.session, self.interface = trial, trial.session, interface
        self.rng = trial.rng(PADDING)
        (sizes,) = interface.feeder.cases((_LENGTH,))
        self.sizes = {**sizes, BATCH: 2, PAST: 0}
        self.feeds = interface.feeder.make(self.sizes, self.rng)

    def fault(self, side: _Side) -> tuple[str, dict[str, float]]:
        """What is wrong with padding on a side, as a clause, or nothing; and its figures."""
        padded = self.padded(side)
        rows = self._rows(self.session.run(padded), 1, side.real)
        other = self._rows(self.session.run(self.refilled(padded, side)), 1, side.real)
        alone = self._rows(self.session.run(self._alone(side, _SHORT)), 0, slice(0, _SHORT))
        longer = {name: array[: _SHORT - 1] for name, array in alone.items()}
        shorter = self._rows(
            self.session.run(self._alone(side, _SHORT - 1)), 0, slice(0, _SHORT - 1)
        )
        budget = rounding_budget(largest_difference(shorter, longer), alone)
        error = largest_difference(rows, alone)
        if not error <= budget:
            budget = max(budget, agreement(rows, alone, self.trial.honest).budget)
        figures = {"max_abs": error, "budget": budget}
        seen = [name for name in rows if rows[name].tobytes() != other[name].tobytes()]
        if seen:
            return f"{seen} change with what lies in the padding", figures
        if not error <= budget:
            return (
                f"rows are off by {error:.3g} from the sequence alone, budget {budget:.3g}, "
                "though what lies in the padding is not seen: positions count it",
                figures,
            )
        return "", figures

    def padded(self, side: _Side) -> Feeds:
        """Two sequences, the second with padding on `side`."""
        feeds = {name: array.copy() for name, array in self.feeds.items()}
        mask = feeds[self.interface.mask or ""]
        mask[1] = 0
        mask[1, side.real] = 1
        if self.interface.positions is not None:
            # The ecosystem's rule: positions count what the mask leaves.
            ids = feeds[self.interface.positions]
            if ids.ndim == 2:
                ids[1] = np.maximum(np.cumsum(mask[1, :_LENGTH]) - 1, 0)
        return feeds

    def refilled(self, padded: Feeds, side: _Side) -> Feeds:
        """`padded` with other tokens in the padding."""
        feeder = self.interface.feeder
        changed = {name: array.copy() for name, array in padded.items()}
        hidden = np.ones(_LENGTH, bool)
        hidden[side.real] = False
        for tensor in feeder.contract.inputs:
            if tensor.name in feeder.fixed or BATCH not in tensor.dims:
                continue
            second = np.moveaxis(changed[tensor.name], tensor.dims.index(BATCH), 0)[1]
            axes = [axis for axis in feeder.token_axes(tensor) if axis != tensor.dims.index(BATCH)]
            for axis in axes:
                at = axis - (axis > tensor.dims.index(BATCH))
                view = np.moveaxis(second, at, 0)
                view[hidden] = feeder.other(tensor, view[hidden], HUGE, self.rng)
        return changed

    def _alone(self, side: _Side, length: int) -> Feeds:
        """The first `length` real tokens of the shorter sequence, without the other sequence."""
        feeder = self.interface.feeder
        sizes = {**self.sizes, BATCH: 1, TOKENS: length}
        feeds: Feeds = {}
        for tensor in feeder.contract.inputs:
            shape = feeder.shape(tensor, sizes)
            if tensor.name in feeder.fixed:
                feeds[tensor.name] = feeder.fixed[tensor.name](shape, sizes).astype(tensor.dtype)
                continue
            array = self.feeds[tensor.name]
            if BATCH in tensor.dims:
                array = np.take(array, [1], tensor.dims.index(BATCH))
            for axis in feeder.token_axes(tensor):
                start = side.real.start
                array = np.take(array, range(start, start + length), axis)
            feeds[tensor.name] = array
        return feeds

    def _rows(
        self, results: dict[str, NDArray[np.generic]], sequence: int, rows: slice
    ) -> dict[str, NDArray[np.generic]]:
        """Rows of one sequence, rows first.

        Weights have another number of keys, and keys in a cache are rotated by their place in it.
        """
        feeder = self.interface.feeder
        kept = {}
        for tensor in feeder.watched():
            axes = list(feeder.token_axes(tensor))
            if len(axes) > 1 or continues_cache(tensor.name) or BATCH not in tensor.dims:
                continue
            batch = tensor.dims.index(BATCH)
            one = np.take(results[tensor.name], sequence, batch)
            kept[tensor.name] = np.moveaxis(one, axes[0] - (axes[0] > batch), 0)[rows]
        return kept
