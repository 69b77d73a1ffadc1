"""Whether the past is seen: a graph that sees only itself, or nothing, is causal and useless."""

from __future__ import annotations

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import same_row
from causal_attn.verify.checks.trial import Trial

__all__ = ["check_past_matters"]

_NAME = "past matters"


def check_past_matters(trial: Trial) -> Check | None:
    """Change one token; its own row and the next must change.

    With a window of 1 only the own row is asked for. Two tries, since a change may happen to
    cancel. ``None`` where one token is all there is.
    """
    length = trial.length(13)
    if length < 2:
        return None
    feeder, session, rng = trial.feeder, trial.session, trial.rng(_NAME)
    spec = feeder.contract.spec
    at = min(3, length - 2)
    rows = (at,) if spec is not None and spec.window == 1 else (at, at + 1)
    (sizes,) = feeder.cases((length,))
    unmoved: list[int] = []
    for _ in range(2):
        feeds = feeder.make(sizes, rng)
        base = session.run(feeds)
        changed = session.run(feeder.perturb(feeds, range(at, at + 1), 1.0, rng))
        unmoved = [row for row in rows if same_row(feeder, base, changed, length, row)]
        if not unmoved:
            break
    if unmoved:
        what = "itself is not read" if unmoved[0] == at else "the past does not reach it"
        detail = f"changing token {at} changes nothing at position {unmoved[0]}: {what}"
    else:
        detail = "a changed token changes its own row" + (" and the next" if len(rows) > 1 else "")
    return trial.result(_NAME, not unmoved, detail)
