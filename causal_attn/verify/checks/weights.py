"""Whether returned weights are weights: 0 where nothing may be seen, and rows that sum to 1."""

from __future__ import annotations

import numpy as np

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.cache_slots import held_tokens

__all__ = ["check_weights"]

_NAME = "weights"


def check_weights(trial: Trial) -> Check | None:
    """Weights of the future must be 0 and rows sum to 1; ``None`` without such an output."""
    feeder, session = trial.feeder, trial.session
    contract = feeder.contract
    if contract.spec is None or all(tensor.name != "weights" for tensor in contract.outputs):
        return None
    rng = trial.rng(_NAME)
    worst = 0.0
    for sizes in feeder.cases(trial.probe_lengths):
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
            detail = f"at {q_tokens} tokens a hidden key weighs, or a row does not sum to 1"
            return trial.result(_NAME, False, detail)
    return trial.result(
        _NAME,
        True,
        f"hidden keys weigh exactly 0; rows sum to 1 within {worst:.2g}",
        row_sum_error=worst,
    )
