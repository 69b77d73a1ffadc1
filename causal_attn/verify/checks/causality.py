"""Whether the future is invisible and the past is seen: finite perturbations on the real provider.

From a cut on, every token input is replaced, once by a small and once by a huge finite amount, so
that scores lie far apart and an additive mask of -1e4 gives itself away. Rows before the cut must
not change in a single bit. NaN and infinity are not used: 0 * NaN is NaN, which accuses graphs
that are right. A provider whose kernels are not repeatable is held to its own run-to-run noise,
which is measured and printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.package.contract import TensorContract
from causal_attn.runtime import Session
from causal_attn.verify.feeds.cache_slots import blank_unused, held_tokens
from causal_attn.verify.feeds.feeder import Feeder

__all__ = [
    "PROBE_LENGTHS",
    "check_batch_is_independent",
    "check_future_is_invisible",
    "check_past_matters",
    "check_weights",
    "check_window",
]

PROBE_LENGTHS = (2, 3, 8, 13, 33, 130)
"""Tokens the probes run at; 1 has no future."""

SMALL, HUGE = 0.1, 1e6

Results = Mapping[str, NDArray[Any]]


def check_future_is_invisible(
    session: Session,
    feeder: Feeder,
    *,
    lengths: Sequence[int] = PROBE_LENGTHS,
    seed: int = 1,
) -> Check:
    """Replace the future; earlier rows of every output must stay bitwise equal."""
    name, provider = "future is invisible", str(session.provider)
    rng = np.random.default_rng(seed)
    if not feeder.watched():
        detail = f"no output has a dim `{feeder.contract.tokens}`: name the dims of the tokens"
        return Check(name=name, passed=None, detail=detail, provider=provider)
    noise, probes = 0.0, 0
    for sizes in feeder.cases(lengths):
        tokens = sizes[feeder.contract.tokens]
        try:
            feeds = feeder.make(sizes, rng)
            base, again = session.run(feeds), session.run(feeds)
            noise = max(noise, *(_distance(base[t.name], again[t.name]) for t in feeder.watched()))
            for cut in sorted({1, tokens // 2, tokens - 1} - {0}):
                for amount in (SMALL, HUGE):
                    probes += 1
                    changed = session.run(feeder.perturb(feeds, range(cut, tokens), amount, rng))
                    found = _first_change(feeder, base, changed, tokens, cut, noise)
                    if found is not None:
                        output, row = found
                        return Check(
                            name=name,
                            passed=False,
                            detail=(
                                f"`{output}` at position {row} changes when inputs from position "
                                f"{cut} on change ({tokens} tokens, amount {amount:g}): it sees "
                                "the future"
                            ),
                            figures={"output": output, "row": row, "cut": cut, "tokens": tokens},
                            provider=provider,
                        )
        except CausalAttnError as error:
            # It says nothing about the future.
            detail = f"does not run at {_text(sizes)}: {error}"
            return Check(name="runs", passed=False, detail=detail, provider=provider)
    equal = "bitwise equal" if noise == 0 else f"equal within run-to-run noise {noise:.2g}"
    return Check(
        name=name,
        passed=True,
        detail=f"{probes} probes at {min(lengths)} to {max(lengths)} tokens: the past {equal}",
        figures={"probes": probes, "noise": noise},
        provider=provider,
    )


def check_past_matters(
    session: Session, feeder: Feeder, *, length: int = 13, seed: int = 2
) -> Check:
    """Change one token; its own row and the next must change.

    A graph that sees only itself, or nothing, is wrong; with a window of 1 only the own row is
    asked for. Two tries, since a change may happen to cancel.
    """
    rng = np.random.default_rng(seed)
    spec = feeder.contract.spec
    at = min(3, length - 2)
    rows = (at,) if spec is not None and spec.window == 1 else (at, at + 1)
    (sizes,) = feeder.cases((length,))
    unmoved: list[int] = []
    for _ in range(2):
        feeds = feeder.make(sizes, rng)
        base = session.run(feeds)
        changed = session.run(feeder.perturb(feeds, range(at, at + 1), 1.0, rng))
        unmoved = [row for row in rows if _same_row(feeder, base, changed, length, row)]
        if not unmoved:
            break
    if unmoved:
        what = "itself is not read" if unmoved[0] == at else "the past does not reach it"
        detail = f"changing token {at} changes nothing at position {unmoved[0]}: {what}"
    else:
        detail = "a changed token changes its own row" + (" and the next" if len(rows) > 1 else "")
    return Check(
        name="past matters", passed=not unmoved, detail=detail, provider=str(session.provider)
    )


def check_batch_is_independent(
    session: Session, feeder: Feeder, *, length: int = 9, seed: int = 4
) -> Check | None:
    """Change one sequence of a batch of two; the other must not change in a single bit.

    ``None`` where no input has a dim ``batch`` that may be 2.
    """
    axes = {
        tensor.name: tensor.dims.index("batch")
        for tensor in (*feeder.contract.inputs, *feeder.contract.outputs)
        if "batch" in tensor.dims
    }
    if feeder.pinned.get("batch", 2) < 2 or not any(
        tensor.name in axes for tensor in feeder.contract.inputs
    ):
        return None
    rng = np.random.default_rng(seed)
    (sizes,) = feeder.cases((length,))
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
    return Check(
        name="batch is independent",
        passed=not mixed,
        detail=(
            f"{mixed} of one sequence change with another sequence of the batch"
            if mixed
            else "another sequence of the batch changes nothing"
        ),
        provider=str(session.provider),
    )


def check_window(
    session: Session, feeder: Feeder, *, length: int = 13, seed: int = 7
) -> Check | None:
    """Replace what a claimed window hides; later rows must stay bitwise equal.

    ``None`` where the contract claims no window, or `length` does not exceed it.
    """
    spec = feeder.contract.spec
    if spec is None or spec.window is None or spec.window >= length:
        return None
    rng = np.random.default_rng(seed)
    (sizes,) = feeder.cases((length,))
    feeds = feeder.make({**sizes, "past_tokens": 0} if "past_tokens" in sizes else sizes, rng)
    base = session.run(feeds)
    seen: list[tuple[str, int, int]] = []
    for cut in sorted({1, (length - spec.window + 1) // 2, length - spec.window}):
        changed = session.run(feeder.perturb(feeds, range(cut), HUGE, rng))
        # Row i sees keys from i - window + 1 on.
        for tensor in feeder.watched():
            if tensor.name not in ("output", "weights"):
                continue
            old, new = _rows(feeder, tensor, base), _rows(feeder, tensor, changed)
            rows = range(cut + spec.window - 1, length)
            seen += [
                (tensor.name, row, cut) for row in rows if old[row].tobytes() != new[row].tobytes()
            ]
    detail = f"rows do not change with positions {spec.window} or more before them"
    if seen:
        name, row, cut = seen[0]
        detail = (
            f"`{name}` at position {row} changes with positions before {cut}, outside its window "
            f"of {spec.window}"
        )
    return Check(name="window", passed=not seen, detail=detail, provider=str(session.provider))


def check_weights(
    session: Session,
    feeder: Feeder,
    *,
    lengths: Sequence[int] = PROBE_LENGTHS,
    seed: int = 3,
) -> Check | None:
    """Weights of the future must be 0 and rows sum to 1; ``None`` without such an output."""
    contract = feeder.contract
    if contract.spec is None or all(tensor.name != "weights" for tensor in contract.outputs):
        return None
    rng = np.random.default_rng(seed)
    worst = 0.0
    for sizes in feeder.cases(lengths):
        feeds = feeder.make(sizes, rng)
        weights = session.run(feeds)["weights"].astype(np.float64)
        q_tokens, kv_tokens = weights.shape[-2:]
        held = held_tokens(contract, feeds)
        past = np.array([kv_tokens - q_tokens]) if held is None else held
        query = np.arange(q_tokens)[:, None] + past.reshape(-1, 1, 1, 1)
        hidden = np.arange(kv_tokens)[None, :] > query
        if contract.spec.window is not None:
            hidden |= np.arange(kv_tokens)[None, :] <= query - contract.spec.window
        worst = max(worst, float(np.abs(weights.sum(axis=-1) - 1).max()))
        # Written so that NaN fails: a comparison with NaN is false.
        if not (np.where(hidden, weights, 0) == 0).all() or not worst <= 1e-2:
            return Check(
                name="weights",
                passed=False,
                detail=f"at {q_tokens} tokens a hidden key weighs, or a row does not sum to 1",
                provider=str(session.provider),
            )
    return Check(
        name="weights",
        passed=True,
        detail=f"hidden keys weigh exactly 0; rows sum to 1 within {worst:.2g}",
        figures={"row_sum_error": worst},
        provider=str(session.provider),
    )


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _rows(feeder: Feeder, tensor: TensorContract, results: Results) -> NDArray[Any]:
    axis = feeder.token_axis(tensor)
    assert axis is not None  # of `watched` outputs only
    return np.moveaxis(results[tensor.name], axis, 0)


def _first_change(
    feeder: Feeder, base: Results, changed: Results, tokens: int, cut: int, noise: float
) -> tuple[str, int] | None:
    """The first output and position before `cut` that differ; a cache in front is < 0."""
    for tensor in feeder.watched():
        old, new = _rows(feeder, tensor, base), _rows(feeder, tensor, changed)
        past = len(old) - tokens
        for row in range(past + cut):
            same = old[row].tobytes() == new[row].tobytes()
            if not same and not _distance(old[row], new[row]) <= noise:
                return tensor.name, row - past
    return None


def _same_row(feeder: Feeder, base: Results, changed: Results, tokens: int, position: int) -> bool:
    for tensor in feeder.watched():
        old, new = _rows(feeder, tensor, base), _rows(feeder, tensor, changed)
        row = len(old) - tokens + position
        if old[row].tobytes() != new[row].tobytes():
            return False
    return True


def _distance(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Largest absolute difference; infinity where one is NaN and the other is not."""
    if left.dtype.kind not in "fV":
        return 0.0 if np.array_equal(left, right) else float("inf")
    a, b = left.astype(np.float64), right.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    same = (a == b) | np.isnan(a)
    return float(np.abs(np.where(same, 0, a) - np.where(same, 0, b)).max(initial=0))
