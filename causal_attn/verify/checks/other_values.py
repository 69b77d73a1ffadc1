"""Whether the future stays invisible while positions restart and tokens are of several kinds.

Every other probe runs while position ids count up and all tokens are of one kind. Packed sequences
restart their positions, images are blocks of another kind: a mask made from such an input may open
then. What opens is no fault, since models of images mean it, and it is a condition of the claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.coverage import covered
from causal_attn.verify.checks.future import first_change
from causal_attn.verify.checks.rows import HUGE, Results
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.compare.rounding import distance
from causal_attn.verify.feeds.feeder import Feeder, Fixed, Sizes
from causal_attn.verify.interface.naming import POSITIONS

__all__ = ["OTHER_VALUES", "check_other_values"]

OTHER_VALUES = "other positions and kinds"

_LENGTHS = (3, 8, 13)
"""Tokens probed: two of one kind fit between others, and two sequences into each."""


def check_other_values(trial: Trial) -> Check | None:
    """Restart positions, then open a block of another kind, and replace the future.

    Undecided, with the condition under which nothing is seen, where earlier rows change; ``None``
    where no input of the graph says where a token stands or of which kind it is.
    """
    interface = trial.interface
    if interface is None or interface.rowless or not trial.feeder.watched():
        return None
    tokens = trial.feeder.contract.tokens
    lengths = sorted({trial.length(length) for length in _LENGTHS} - {1})
    opened: dict[str, str] = {}
    done: dict[str, list[Sizes]] = {}
    for name, words in interface.conditions.items():
        changed = _restarting if name in POSITIONS else _block
        feeder = replace(
            trial.feeder,
            fixed={**trial.feeder.fixed, name: changed(trial.feeder.fixed[name])},
        )
        for sizes in feeder.cases(lengths):
            try:
                seen = _seen(trial, feeder, sizes)
            except CausalAttnError:
                # A table or a cache may have no place for these values; the claim is not about it.
                continue
            done.setdefault(name, []).append(sizes)
            if seen is not None:
                opened[words] = f"{seen} ({sizes[tokens]} tokens) unless {words}"
                break
    if not done:
        return None
    if opened:
        detail = "; ".join(opened.values())
        return trial.result(OTHER_VALUES, None, detail, conditions=list(opened))
    calls = [sizes for some in done.values() for sizes in some]
    names = " and ".join(f"`{name}`" for name in done)
    detail = f"other values of {names} {covered(calls, tokens)}: the past does not change"
    return trial.result(OTHER_VALUES, True, detail)


def _seen(trial: Trial, feeder: Feeder, sizes: Sizes) -> str | None:
    """What earlier row changes with the future; ``None`` where none does."""
    rng, tokens = trial.rng(OTHER_VALUES), sizes[feeder.contract.tokens]
    feeds = feeder.make(sizes, rng)
    base = trial.session.run(feeds)
    noise = _noise(base, trial.session.run(feeds), feeder)
    for cut in _cuts(tokens):
        changed = feeder.perturb(feeds, range(cut, tokens), HUGE, rng)
        found = first_change(feeder, base, trial.session.run(changed), tokens, cut, noise)
        if found is not None:
            return f"`{found[0]}` at position {found[1]} sees inputs from position {cut} on"
    return None


def _noise(base: Results, again: Results, feeder: Feeder) -> dict[str, float]:
    names = [tensor.name for tensor in feeder.watched()]
    return {name: distance(base[name], again[name]) for name in names}


def _cuts(tokens: int) -> Iterator[int]:
    """One in the block, one at each end."""
    yield from sorted({1, tokens // 2, tokens - 1})


def _restarting(counting: Fixed) -> Fixed:
    """Two sequences in one: the second half has the positions of the first."""

    def values(shape: tuple[int, ...], sizes: Sizes) -> NDArray[Any]:
        positions = np.array(counting(shape, sizes))
        half = positions.shape[-1] // 2
        positions[..., half:] = positions[..., : positions.shape[-1] - half]
        return positions

    return values


def _block(alike: Fixed) -> Fixed:
    """All but the first token and the last are of the next kind."""

    def values(shape: tuple[int, ...], sizes: Sizes) -> NDArray[Any]:
        kinds = np.array(alike(shape, sizes))
        kinds[..., 1 : kinds.shape[-1] - 1] += 1
        return kinds

    return values
