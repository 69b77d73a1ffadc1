"""Whether a claimed window hides what lies before it."""

from __future__ import annotations

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import HUGE, rows_of
from causal_attn.verify.checks.trial import Trial

__all__ = ["check_window"]

_NAME = "window"


def check_window(trial: Trial) -> Check | None:
    """Replace what a claimed window hides; later rows must stay bitwise equal.

    ``None`` where the contract claims no window, or no length exceeds it.
    """
    feeder, session = trial.feeder, trial.session
    spec = feeder.contract.spec
    if spec is None or spec.window is None:
        return None
    length = min(spec.window + 9, trial.longest)
    if spec.window >= length:
        return None
    rng = trial.rng(_NAME)
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
            old, new = rows_of(feeder, tensor, base), rows_of(feeder, tensor, changed)
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
    return trial.result(_NAME, not seen, detail)
