"""Whether the past is seen: a graph that sees only itself, or nothing, is causal and useless."""

from __future__ import annotations

import numpy as np

from causal_attn.package.certificate import Check
from causal_attn.verify.checks.rows import same_row
from causal_attn.verify.checks.trial import Trial

__all__ = ["check_past_matters"]

_NAME = "past matters"

_PLACES = (3, 4, 5, 6, 0, 10)
"""Tokens that are changed: next to each other, so that blocks of any size end between some."""


def check_past_matters(trial: Trial) -> Check | None:
    """Change one token; its own row must change, and of some token a later row too.

    Which later row is for the graph to say: blocks of tokens that see none before them are right,
    as are a window and a cache of few slots. With a window of 1 only the own row is asked for. Two
    tries, since a change may happen to cancel. ``None`` where one token is all there is.
    """
    length = trial.length(13)
    if length < 2:
        return None
    if trial.interface is not None and trial.interface.rowless:
        return _tokens_matter(trial, length)
    spec = trial.feeder.contract.spec
    alone = spec is not None and spec.window == 1
    places = [place for place in _PLACES if place < length - 1] or [0]
    rng = trial.rng(_NAME)
    moved: dict[int, set[int]] = {place: set() for place in places}
    unread: list[int] = places
    reached: list[tuple[int, int]] = []
    for _ in range(2):
        for place in places:
            moved[place] |= _moved(trial, length, place, rng)
        unread = [place for place in places if place not in moved[place]]
        reached = [(at, row) for at in places for row in sorted(moved[at]) if row > at]
        if not unread and (reached or alone):
            break
    if unread:
        detail = (
            f"changing token {unread[0]} changes nothing at position {unread[0]}: itself is not "
            "read"
        )
    elif not reached and not alone:
        detail = (
            f"changing token {places[0]} changes nothing at position {places[0] + 1}, nor does "
            f"any of {sorted(places)} change a later one: the past does not reach it"
        )
    else:
        detail = "a changed token changes its own row"
        if reached:
            at, row = reached[0]
            detail += f", and {at} changes {row}"
    passed = not unread and (alone or bool(reached))
    return trial.result(_NAME, passed, detail, tokens=length, changed=places)


def _tokens_matter(trial: Trial, length: int) -> Check:
    """Of results of all tokens: more than one token must have a part in them."""
    feeder, session, rng = trial.feeder, trial.session, trial.rng(_NAME)
    (sizes,) = feeder.cases((length,))
    feeds = feeder.make(sizes, rng)
    base = session.run(feeds)
    places = sorted({0, length // 2, length - 2, length - 1})
    moved = []
    for place in places:
        changed = session.run(feeder.perturb(feeds, range(place, place + 1), 1.0, rng))
        if any(changed[name].tobytes() != base[name].tobytes() for name in base):
            moved.append(place)
    detail = f"of the tokens {places} those that change a result are {moved}"
    if len(moved) < 2:
        detail += ": the others are not read"
    return trial.result(_NAME, len(moved) > 1, detail, tokens=length, changed=places)


def _moved(trial: Trial, length: int, place: int, rng: np.random.Generator) -> set[int]:
    """Positions from `place` on that change with the token there."""
    feeder, session = trial.feeder, trial.session
    (sizes,) = feeder.cases((length,))
    feeds = feeder.make(sizes, rng)
    base = session.run(feeds)
    changed = session.run(feeder.perturb(feeds, range(place, place + 1), 1.0, rng))
    rows = range(place, length)
    return {row for row in rows if not same_row(feeder, base, changed, length, row)}
