"""Whether the future is invisible and the past is seen: finite perturbations on the real provider.

From a cut on, every token input is replaced, once by a small and once by a huge finite amount, so
that scores lie far apart and an additive mask of -1e4 gives itself away. Rows before the cut must
not change in a single bit. NaN and infinity are not used: 0 * NaN is NaN, which accuses graphs
that are right. A provider whose kernels are not repeatable is held to its own run-to-run noise,
which is measured and printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.certificate import Check
from causal_attn.contract import Contract, TensorContract
from causal_attn.errors import CausalAttnError
from causal_attn.runtime import Session
from causal_attn.verify.feeds import Bounds, Feeds, cases, make_feeds

__all__ = ["PROBE_LENGTHS", "check_future_is_invisible", "check_past_matters", "check_weights"]

PROBE_LENGTHS = (2, 3, 8, 13, 33, 130)
"""Tokens the probes run at; 1 has no future."""

SMALL, HUGE = 0.1, 1e6
HUGE_HALF = 1e3
"""float16 ends at 65,504: scores of 64 unit-sized features times this still fit."""


def check_future_is_invisible(
    session: Session,
    *,
    lengths: Sequence[int] = PROBE_LENGTHS,
    bounds: Bounds | None = None,
    seed: int = 1,
) -> Check:
    """Replace the future; earlier rows of every output must stay bitwise equal."""
    rng = np.random.default_rng(seed)
    contract = session.contract
    name, provider = "future is invisible", str(session.provider)
    watched = [tensor for tensor in contract.outputs if _token_axis(contract, tensor) is not None]
    if not watched:
        return Check(
            name=name,
            passed=None,
            detail=f"no output has a dim `{contract.tokens}`: name the dims of the example inputs",
            provider=provider,
        )
    noise, probes = 0.0, 0
    for sizes in cases(contract, lengths):
        feeds = make_feeds(contract, sizes, rng, bounds)
        tokens = sizes[contract.tokens]
        try:
            base = session.run(feeds)
            again = session.run(feeds)
            noise = max(noise, *(_distance(base[t.name], again[t.name]) for t in watched))
            for cut in sorted({1, tokens // 2, tokens - 1} - {0}):
                for amount in (SMALL, HUGE):
                    changed = session.run(
                        _perturbed(contract, feeds, range(cut, tokens), amount, rng, bounds)
                    )
                    probes += 1
                    for tensor in watched:
                        row = _first_change(contract, tensor, base, changed, tokens, cut, noise)
                        if row is not None:
                            return Check(
                                name=name,
                                passed=False,
                                detail=(
                                    f"`{tensor.name}` at position {row} changes when inputs from "
                                    f"position {cut} on change ({tokens} tokens, amount "
                                    f"{amount:g}): it sees the future"
                                ),
                                figures={"row": row, "cut": cut, "tokens": tokens},
                                provider=provider,
                            )
        except CausalAttnError as error:
            return Check(
                name=name,
                passed=False,
                detail=f"does not run at {tokens} tokens: {error}",
                provider=provider,
            )
    equality = "bitwise equal" if noise == 0 else f"equal within run-to-run noise {noise:.2g}"
    return Check(
        name=name,
        passed=True,
        detail=f"{probes} probes at {min(lengths)} to {max(lengths)} tokens: the past {equality}",
        figures={"probes": probes, "noise": noise},
        provider=provider,
    )


def check_past_matters(
    session: Session,
    *,
    length: int = 13,
    bounds: Bounds | None = None,
    seed: int = 2,
) -> Check:
    """Change one token; the row after it must change: a graph that sees only itself is wrong."""
    rng = np.random.default_rng(seed)
    contract = session.contract
    watched = [tensor for tensor in contract.outputs if _token_axis(contract, tensor) is not None]
    (sizes,) = cases(contract, (length,))
    window = contract.spec.window if contract.spec is not None else None
    blind = []
    for _ in range(1 if window == 1 else 2):
        feeds = make_feeds(contract, sizes, rng, bounds)
        base = session.run(feeds)
        changed = session.run(_perturbed(contract, feeds, range(3, 4), 1.0, rng, bounds))
        blind = [
            position
            for position in ((3,) if window == 1 else (3, 4))
            if all(
                _same_row(contract, tensor, base, changed, length, position) for tensor in watched
            )
        ]
        if not blind:
            break
    if blind:
        detail = (
            f"changing token 3 changes nothing at position {blind[0]}: the past does not reach it"
        )
    else:
        detail = "a changed token changes its own row and the next"
    return Check(
        name="past matters", passed=not blind, detail=detail, provider=str(session.provider)
    )


def check_weights(
    session: Session,
    *,
    lengths: Sequence[int] = PROBE_LENGTHS,
    seed: int = 3,
) -> Check | None:
    """Weights of the future must be 0 and rows sum to 1; ``None`` without such an output."""
    contract = session.contract
    if contract.spec is None or all(tensor.name != "weights" for tensor in contract.outputs):
        return None
    rng = np.random.default_rng(seed)
    worst = 0.0
    for sizes in cases(contract, lengths):
        weights = session.run(make_feeds(contract, sizes, rng))["weights"].astype(np.float64)
        q_tokens, kv_tokens = weights.shape[-2:]
        query = np.arange(q_tokens)[:, None] + (kv_tokens - q_tokens)
        hidden = np.arange(kv_tokens)[None, :] > query
        if contract.spec.window is not None:
            hidden |= np.arange(kv_tokens)[None, :] <= query - contract.spec.window
        worst = max(worst, float(np.abs(weights.sum(axis=-1) - 1).max()))
        # Written so that NaN fails: a comparison with NaN is false.
        if not (weights[..., hidden] == 0).all() or not worst <= 1e-2:
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


def _token_axis(contract: Contract, tensor: TensorContract) -> int | None:
    """The first axis of `tensor` that runs along the tokens: queries come before keys."""
    return next(iter(_token_axes(contract, tensor)), None)


def _token_axes(contract: Contract, tensor: TensorContract) -> Iterator[int]:
    for axis, dim in enumerate(tensor.dims):
        if isinstance(dim, str) and contract.tokens in (t.strip() for t in dim.split("+")):
            yield axis


def _perturbed(
    contract: Contract,
    feeds: Feeds,
    positions: range,
    amount: float,
    rng: np.random.Generator,
    bounds: Bounds | None,
) -> Feeds:
    """`feeds` with every token input changed at `positions`, finitely and each on its own."""
    changed = {}
    for tensor in contract.inputs:
        array = feeds[tensor.name].copy()
        for axis in _token_axes(contract, tensor):
            view = np.moveaxis(array, axis, 0)[positions.start : positions.stop]
            view[...] = _other(tensor, view, amount, rng, bounds)
        changed[tensor.name] = array
    return changed


def _other(
    tensor: TensorContract,
    values: NDArray[Any],
    amount: float,
    rng: np.random.Generator,
    bounds: Bounds | None,
) -> NDArray[Any]:
    if values.dtype == np.bool_:
        return ~values
    if values.dtype.kind in "iu":
        low, high = (bounds or {}).get(tensor.name, (0, 2))
        # A step from 1 to high - low - 1 never lands on the value itself.
        step = rng.integers(1, max(2, high - low), values.shape)
        moved = (values.astype(np.int64) - low + step) % max(1, high - low) + low
        return moved.astype(values.dtype)
    if values.dtype.itemsize < 4:
        amount = min(amount, HUGE_HALF)
    noise = rng.standard_normal(values.shape)
    return (values.astype(np.float64) + amount * noise).astype(values.dtype)


def _rows(
    contract: Contract, tensor: TensorContract, results: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    axis = _token_axis(contract, tensor)
    assert axis is not None
    return np.moveaxis(results[tensor.name], axis, 0)


def _first_change(
    contract: Contract,
    tensor: TensorContract,
    base: Mapping[str, NDArray[Any]],
    changed: Mapping[str, NDArray[Any]],
    tokens: int,
    cut: int,
    noise: float,
) -> int | None:
    """The first position before `cut` whose row differs; a cache in front is position < 0."""
    old, new = _rows(contract, tensor, base), _rows(contract, tensor, changed)
    past = len(old) - tokens
    for row in range(past + cut):
        if old[row].tobytes() != new[row].tobytes() and not _distance(old[row], new[row]) <= noise:
            return row - past
    return None


def _same_row(
    contract: Contract,
    tensor: TensorContract,
    base: Mapping[str, NDArray[Any]],
    changed: Mapping[str, NDArray[Any]],
    tokens: int,
    position: int,
) -> bool:
    old, new = _rows(contract, tensor, base), _rows(contract, tensor, changed)
    row = len(old) - tokens + position
    return bool(old[row].tobytes() == new[row].tobytes())


def _distance(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Largest absolute difference; infinity where one is NaN and the other is not."""
    if left.dtype.kind not in "fV":
        return 0.0 if np.array_equal(left, right) else float("inf")
    a, b = left.astype(np.float64), right.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    same = (a == b) | np.isnan(a)
    return float(np.abs(np.where(same, 0, a) - np.where(same, 0, b)).max(initial=0))
