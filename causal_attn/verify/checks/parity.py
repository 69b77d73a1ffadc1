"""Whether a graph says what PyTorch says: every output against a float64 oracle, within a budget.

The budget is not a hand-picked tolerance. It is twice the error that plain torch (or numpy, where
there is no torch) makes at the same dtype on the same inputs, plus a rounding band of a few units
in the last place of the largest value: results that are exact by luck must not make a correct
result fail. NaN where the oracle has none is a failure, whatever the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.runtime import Session
from causal_attn.verify.feeds.cache_slots import blank_unused
from causal_attn.verify.feeds.feeder import LENGTHS, Feeder, Feeds, Sizes

__all__ = ["Comparison", "Run", "check_large_inputs", "check_parity", "compare", "widened"]

Run = Callable[[Feeds], Mapping[str, NDArray[Any]]]
"""Feeds by input name to results by output name."""

SPREAD = 30
"""Of large inputs: exp(30) is far from the end of float32 and beyond where kernels saturate."""

BAND_ULP = 4
"""One rounding each for score, exponential, sum and product."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output against its oracle.

    Attributes:
        max_abs: Largest absolute error.
        max_rel: Largest error relative to the largest magnitude of the oracle.
        max_ulp: `max_abs` in units in the last place, at the output's dtype, of that magnitude.
        budget: Largest absolute error allowed.
        passed: ``max_abs <= budget`` and no NaN or infinity that the oracle does not have.
        reason: Why not, as a clause; empty if it passed.
    """

    max_abs: float
    max_rel: float
    max_ulp: float
    budget: float
    passed: bool
    reason: str = ""


def compare(
    actual: NDArray[Any],
    oracle: NDArray[Any],
    baseline: NDArray[Any] | None = None,
) -> Comparison:
    """Compare one output.

    Args:
        actual: What the graph returned, any shape and dtype.
        oracle: The right values, same shape, in float64 (exact dtypes as they are).
        baseline: The same computation in plain torch at the dtype of `actual`; ``None`` leaves
            the rounding band alone as the budget.
    """
    if actual.shape != oracle.shape:
        reason = f"shape {list(actual.shape)} where the oracle has {list(oracle.shape)}"
        return Comparison(
            max_abs=np.inf, max_rel=np.inf, max_ulp=np.inf, budget=0, passed=False, reason=reason
        )
    if actual.dtype.kind not in "fV" and oracle.dtype.kind != "f":
        wrong = int(np.count_nonzero(actual != oracle))
        reason = f"{wrong} of {actual.size} values differ" if wrong else ""
        return Comparison(
            max_abs=wrong, max_rel=wrong, max_ulp=wrong, budget=0, passed=not wrong, reason=reason
        )
    got, want = actual.astype(np.float64), oracle.astype(np.float64)
    finite = np.isfinite(want)
    magnitude = float(np.abs(want[finite]).max(initial=0))
    ulp = float(np.finfo(actual.dtype).eps) * magnitude
    band = BAND_ULP * ulp + float(np.finfo(actual.dtype).tiny)
    plain = 0.0
    if baseline is not None:
        plain = float(np.abs(baseline.astype(np.float64)[finite] - want[finite]).max(initial=0))
    budget = 2 * plain + band
    # inf - inf is NaN: places where the oracle itself is not finite must agree exactly.
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    difference = np.subtract(got, want, where=finite, out=np.zeros_like(want))
    error = float(np.abs(difference).max(initial=0))
    reason = ""
    if not same or not np.isfinite(got[finite]).all():
        count = int(np.count_nonzero(np.isnan(got) & ~np.isnan(want)))
        reason = f"{count} NaN where the oracle has none" if count else "infinities differ"
    elif not error <= budget:
        reason = f"off by {error:.3g}, budget {budget:.3g}"
    return Comparison(
        max_abs=error,
        max_rel=error / magnitude if magnitude else error,
        max_ulp=error / ulp if ulp else 0.0,
        budget=budget,
        passed=not reason,
        reason=reason,
    )


def check_parity(
    session: Session,
    feeder: Feeder,
    oracle: Run,
    baseline: Run,
    *,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
) -> Check:
    """Run fresh inputs through the graph and the oracle at every length.

    Args:
        session: The graph on its provider.
        feeder: Of its inputs.
        oracle: Gets the feeds with floats widened to float64.
        baseline: Gets the feeds as they are.
        lengths: Tokens; other dims vary along.
        seed: Of the values.
    """
    rng = np.random.default_rng(seed)
    worst: dict[str, Comparison] = {}
    for sizes in feeder.cases(lengths):
        feeds = feeder.make(sizes, rng)
        try:
            results = session.run(feeds)
        except CausalAttnError as error:
            return _failed(session, f"does not run at {_text(sizes)}: {error}")
        try:
            runs = results, oracle(widened(feeds)), baseline(feeds)
        except CausalAttnError as error:
            return Check(
                name="parity",
                passed=None,
                detail=f"the oracle does not run at {_text(sizes)}: {error}",
                provider=str(session.provider),
            )
        results, want, plain = (blank_unused(feeder.contract, feeds, run) for run in runs)
        for name, actual in results.items():
            comparison = compare(actual, want[name], plain[name])
            if not comparison.passed:
                return _failed(session, f"`{name}` at {_text(sizes)}: {comparison.reason}")
            if name not in worst or comparison.max_abs > worst[name].max_abs:
                worst[name] = comparison
    figures = {
        name: {
            "max_abs": c.max_abs, "max_rel": c.max_rel, "max_ulp": c.max_ulp, "budget": c.budget
        }
        for name, c in worst.items()
    }  # fmt: skip
    most = max(worst.values(), key=lambda c: c.max_abs / c.budget if c.budget else 0)
    return Check(
        name="parity",
        passed=True,
        detail=(
            f"{len(lengths)} lengths from {min(lengths)} to {max(lengths)} tokens; largest error "
            f"{most.max_abs:.2g}, budget {most.budget:.2g}"
        ),
        figures=figures,
        provider=str(session.provider),
    )


def check_large_inputs(
    session: Session,
    feeder: Feeder,
    oracle: Run,
    baseline: Run,
    *,
    length: int = 5,
    seed: int = 6,
) -> Check:
    """Inputs of a spread of 30: results must be finite wherever torch's are.

    Kernels that saturate (ONNX Runtime's Sigmoid below -18) are right near 0 and infinite here.
    Errors are not judged: among scores that lie far apart they are those of the inputs.
    """
    rng = np.random.default_rng(seed)
    name, provider = "large inputs", str(session.provider)
    (sizes,) = feeder.cases((length,))
    # What lies in unused slots of a cache may overflow: it is garbage on purpose.
    with np.errstate(over="ignore"):
        feeds = {
            key: np.asarray(array * array.dtype.type(SPREAD))
            if array.dtype.kind in "fV"
            else array
            for key, array in feeder.make(sizes, rng).items()
        }
    try:
        results, want, plain = session.run(feeds), oracle(widened(feeds)), baseline(feeds)
    except CausalAttnError as error:
        return Check(name=name, passed=None, detail=f"does not run: {error}", provider=provider)
    wrong = [
        key
        for key, got in results.items()
        if got.dtype.kind in "fV"
        and (~np.isfinite(got) & np.isfinite(want[key]) & np.isfinite(plain[key])).any()
    ]
    return Check(
        name=name,
        passed=not wrong,
        detail=(
            f"{wrong} are not finite where the oracle is, for inputs of a spread of {SPREAD}"
            if wrong
            else f"finite where the oracle is, for inputs of a spread of {SPREAD}"
        ),
        provider=provider,
    )


def _failed(session: Session, detail: str) -> Check:
    return Check(name="parity", passed=False, detail=detail, provider=str(session.provider))


def widened(feeds: Feeds) -> Feeds:
    """`feeds` with every float as float64, which an oracle takes."""
    return {
        name: array.astype(np.float64) if array.dtype.kind in "fV" else array
        for name, array in feeds.items()
    }


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
