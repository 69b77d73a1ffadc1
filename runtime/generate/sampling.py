"""From logits to a token: the options that everyone knows, in the order `transformers` has them.

``repetition_penalty`` -> ``temperature`` -> ``top_k`` -> ``top_p`` -> ``min_p`` -> a draw. At
temperature 0 the largest logit after the penalty is taken, the first one of equals.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import EngineError, UsageError

__all__ = ["Sampler", "Sampling", "SamplingOptions", "log_shares"]


class SamplingOptions(TypedDict, total=False):
    """`Sampling` as keywords; what is left out is the model's own default."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: >= 0, by which logits are divided; 0 is greedy.
        top_k: Only the `top_k` largest logits and their equals, >= 0; 0 or ``None``: all.
        top_p: Only the most probable tokens that together have this share, in (0, 1]; at least
            one. Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".
        min_p: Only tokens with at least this share of the largest probability, in [0, 1]. Nguyen
            et al. 2024, "Turning Up the Heat".
        repetition_penalty: From 1e-100 to 1e100: logits of tokens that are in the prompt or were
            generated are divided by it where positive, multiplied where negative. Keskar et al.
            2019, "CTRL".
        seed: >= 0, of the draws; ``None``: from the system.

    Raises:
        UsageError: A value is out of its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(self.temperature, "temperature", ">= 0", lambda value: value >= 0)
        # Within these no logit of float32 overflows float64, which would make NaN of the shares.
        _require(
            self.repetition_penalty,
            "repetition_penalty",
            "from 1e-100 to 1e100",
            lambda value: 1e-100 <= value <= 1e100,
        )
        if self.top_p is not None:
            _require(self.top_p, "top_p", "in (0, 1] or None", lambda value: 0 < value <= 1)
        if self.min_p is not None:
            _require(self.min_p, "min_p", "in [0, 1] or None", lambda value: 0 <= value <= 1)
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise UsageError(f"`{name}` must be an integer >= 0 or None, got {value!r}.")

    def with_options(self, options: SamplingOptions) -> Sampling:
        """These, with `options` in place of the same ones here.

        Raises:
            UsageError: An option is unknown or out of its range.
        """
        known = {one.name for one in fields(self)}
        if unknown := sorted(options.keys() - known):
            raise UsageError(f"The options must be of {sorted(known)}, got {unknown}.")
        return replace(self, **options)


class Sampler:
    """Chooses the tokens of one sequence.

    Args:
        sampling: How.
        seen: Tokens of the prompt.
    """

    def __init__(self, sampling: Sampling, seen: Sequence[int]) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._seen = set(seen) if sampling.repetition_penalty != 1 else None

    def choose(self, logits: NDArray[np.float32]) -> int:
        """The next token, by logits ``[vocabulary]``; it counts as seen from now on.

        Raises:
            EngineError: A logit is NaN, or the largest is infinite.
        """
        scores = self.scores(logits)
        if self.sampling.temperature == 0:
            token = int(np.argmax(scores))
        else:
            shares = np.cumsum(_softmax(scores))
            # The last share may be a rounding below 1, and no draw may fall behind it.
            drawn = np.searchsorted(shares, self._random.random() * shares[-1], side="right")
            token = int(min(drawn, len(shares) - 1))
        if self._seen is not None:
            self._seen.add(token)
        return token

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """`logits` after every option but the draw; ``-inf`` for what cannot be chosen."""
        options, scores = self.sampling, logits.astype(np.float64)
        if not math.isfinite(scores.max(initial=-math.inf)):
            raise EngineError(
                "The logits must be numbers, the largest of them finite, got NaN or an infinity: "
                "the model's own arithmetic overflowed. Export it in float32."
            )
        if self._seen:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            found, penalty = scores[seen], options.repetition_penalty
            scores[seen] = np.where(found < 0, found * penalty, found / penalty)
        if options.temperature == 0:
            return scores
        # The largest becomes 0 first: a temperature near 0 overflows only what is far below it.
        with np.errstate(over="ignore"):
            scores = (scores - scores.max()) / options.temperature
        if options.top_k and options.top_k < len(scores):
            least = np.partition(scores, -options.top_k)[-options.top_k]
            scores[scores < least] = -np.inf
        if options.top_p is not None and options.top_p < 1:
            scores = _most_probable(scores, options.top_p)
        if options.min_p:
            shares = _softmax(scores)
            scores[shares < options.min_p * shares.max()] = -np.inf
        return scores


def log_shares(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The logarithm of softmax, ``[vocabulary]``."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


def _most_probable(scores: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    order = np.argsort(scores, kind="stable")
    dropped = np.cumsum(_softmax(scores[order])) <= 1 - share
    dropped[-1] = False
    scores[order[dropped]] = -np.inf
    return scores


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.exp(scores - scores.max())
    shares /= shares.sum()
    return shares


def _require(value: Any, name: str, wanted: str, holds: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # An int may be larger than any float; NaN is not smaller than anything.
    if not number or not abs(value) <= sys.float_info.max or not holds(value):
        raise UsageError(f"`{name}` must be {wanted}, got {value!r}.")
