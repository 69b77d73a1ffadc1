"""What is wrong with a decoder, found by running it: no proof, and no code of the verifier.

From each cut on, all later ids are replaced by others, at every length up to 48 and at more up to
the longest, behind pasts of many lengths; every earlier row must stay what it was. Whole and
prefix, whole and token by token, batch and one sequence, padded and alone must agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trust.layout import Arrays, Layout, Runner

__all__ = ["Truth", "find_truth"]

LENGTHS = (*range(1, 49), 50, 63, 64, 65, 66, 80, 96)
PASTS = (1, 2, 3, 7, 8, 16, 31, 32, 33, 40, 41, 50, 64, 65)
LARGEST = 96

_SAME = 1e-6
"""Parts of the largest value: what no leak stays below and no right graph reaches."""
_AGREES, _AGREES_HALF = 1e-3, 4e-2
"""Parts of the largest value that two ways to compute one thing may lie apart."""


@dataclass(frozen=True)
class Truth:
    """What is wrong: kind -> one example in words. Nothing: the graph is right.

    Attributes:
        faults: ``leak``, ``batch``, ``prefix``, ``decode``, ``padding``, ``runs`` -> example.
        margins: Kind -> the largest difference that was seen, in parts of the largest value.
    """

    faults: dict[str, str] = field(default_factory=dict)
    margins: dict[str, float] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return not self.faults


def find_truth(path: str, layout: Layout, seed: int) -> Truth:
    """Run the graph at `path` in every way; see `Truth`."""
    try:
        runner = Runner(path, layout)
    # ONNX Runtime's errors share no base class that it exports.
    except Exception as error:  # noqa: BLE001
        return Truth({"loads": str(error)[:200]})
    finder = _Finder(runner, seed)
    try:
        for search in (
            finder.batch, finder.future, finder.prefixes, finder.decode, finder.padding
        ):  # fmt: skip
            search()
    # Likewise.
    except Exception as error:  # noqa: BLE001
        finder.faults["runs"] = str(error)[:200]
    return Truth(finder.faults, finder.margins)


class _Finder:
    def __init__(self, runner: Runner, seed: int) -> None:
        self.run, self.layout = runner, runner.layout
        self.rng = np.random.default_rng(seed)
        self.agrees = _AGREES_HALF if runner.half else _AGREES
        self.faults: dict[str, str] = {}
        self.margins: dict[str, float] = {}

    def future(self) -> None:
        for tokens in LENGTHS[1:]:
            cuts = range(1, tokens) if tokens in (12, LARGEST) else {1, tokens // 2, tokens - 1}
            self._future(tokens, 0, cuts)
        if self.layout.cache:
            for past in PASTS:
                for tokens in (2, 5, 34):
                    self._future(tokens, past, {1, tokens // 2, tokens - 1} - {0})
        # A choice by the last token shows at some of its values only.
        ids = self.ids(1, 9)
        base = self.rows(self.run(ids), 9)
        for last in range(self.layout.vocabulary):
            ids[0, -1] = last
            self._compare("leak", base, self.rows(self.run(ids), 9), 8, f"token 8 is {last}")

    def _future(self, tokens: int, past: int, cuts: range | set[int]) -> None:
        ids = self.ids(1, tokens)
        held = self.run.past(1, past, self.rng)
        base = self.rows(self.run(ids, held), tokens)
        for cut in sorted(cuts):
            changed = ids.copy()
            step = self.rng.integers(1, self.layout.vocabulary, tokens - cut)
            changed[:, cut:] = (changed[:, cut:] + step) % self.layout.vocabulary
            where = f"{tokens} tokens behind {past}, changed from {cut} on"
            self._compare("leak", base, self.rows(self.run(changed, held), tokens), cut, where)

    def prefixes(self) -> None:
        ids = self.ids(1, LARGEST)
        whole = self.rows(self.run(ids), LARGEST)
        for tokens in LENGTHS[:-1]:
            rows = self.rows(self.run(ids[:, :tokens]), tokens)
            self._compare("prefix", rows, whole, tokens, f"prefix of {tokens}")

    def decode(self) -> None:
        if not self.layout.cache:
            return
        for batch, steps in (
            (1, (1,) * 70), (2, (1,) * 12), (1, (1, 2, 3, 5, 8, 13, 21)), (1, (50, 1, 1, 30, 1)),
            (1, (20, 20, 20)), (1, (32, 1, 1, 1)), (2, (5, 1, 7, 1)),
        ):  # fmt: skip
            tokens = sum(steps)
            ids = self.ids(batch, tokens)
            whole = self.rows(self.run(ids), tokens)
            past: Arrays | None = None
            done = 0
            for step in steps:
                results = self.run(ids[:, done : done + step], past)
                rows = self.rows(results, step)
                wanted = {name: array[done : done + step] for name, array in whole.items()}
                where = f"{step} tokens after {done} of {batch} sequences"
                self._compare("decode", rows, wanted, step, where)
                past = self.run.handed_on(results)
                done += step

    def batch(self) -> None:
        for batch in (2, 3, 5):
            ids = self.ids(batch, 11)
            base = self.run(ids)
            for item in range(batch):
                changed = ids.copy()
                changed[item] = (changed[item] + 1 + item) % self.layout.vocabulary
                other = self.run(changed)
                for name in base:
                    if base[name].shape[0] != batch:
                        continue
                    kept = [at for at in range(batch) if at != item]
                    where = f"sequence {item} of {batch}"
                    self._differ("batch", base[name][kept], other[name][kept], name, where)
                alone = self.rows(self.run(ids[item : item + 1]), 11)
                together = {
                    name: np.moveaxis(array[item : item + 1], _axis(name, self.layout), 0)
                    for name, array in base.items()
                    if name not in self.layout.rows
                }
                for name, rows in together.items():
                    where = f"sequence {item} of {batch} alone"
                    self._differ("batch", alone[name], rows, name, where)

    def padding(self) -> None:
        for side in self.layout.pads:
            for real, padded in ((6, 5), (1, 9), (20, 14)):
                ids = self.ids(1, real + padded)
                mask = np.ones((1, real + padded), np.int64)
                pad = slice(0, padded) if side == "left" else slice(real, None)
                kept = slice(padded, None) if side == "left" else slice(0, real)
                mask[:, pad] = 0
                base = self.run(ids, None, mask)["logits"][:, kept]
                changed = ids.copy()
                changed[:, pad] = (changed[:, pad] + 7) % self.layout.vocabulary
                where = f"{padded} on the {side} of {real}"
                other = self.run(changed, None, mask)["logits"][:, kept]
                self._differ("padding", base, other, "logits", where)
                alone = self.run(ids[:, kept])["logits"]
                self._differ("padding", base, alone, "logits", where)

    def ids(self, batch: int, tokens: int) -> NDArray[np.int64]:
        return self.rng.integers(0, self.layout.vocabulary, (batch, tokens))

    def rows(self, results: Arrays, tokens: int) -> Arrays:
        """Results with the tokens in front; of caches the new ones."""
        found = {}
        for name, axis in self._axes():
            if name in results:
                array = np.moveaxis(results[name], axis, 0)
                found[name] = array[-tokens:] if name in self.layout.cache.values() else array
        return found

    def _axes(self) -> Iterator[tuple[str, int]]:
        yield "logits", 1
        yield from dict.fromkeys(self.layout.cache.values(), 2).items()
        yield from self.layout.rows.items()

    def _compare(self, kind: str, one: Arrays, other: Arrays, rows: int, where: str) -> None:
        for name, array in one.items():
            if kind != "leak" and name in self.layout.rows:
                continue
            self._differ(kind, array[:rows], other[name][:rows], name, where)

    def _differ(
        self,
        kind: str,
        one: NDArray[np.generic],
        other: NDArray[np.generic],
        name: str,
        where: str,
    ) -> None:
        if one.shape != other.shape:
            self.faults.setdefault(kind, f"{name}: {one.shape} and {other.shape} ({where})")
            return
        if not one.size:
            return
        left, right = one.astype(np.float64), other.astype(np.float64)
        scale = max(float(np.abs(np.nan_to_num(left)).max()), 1e-3)
        with np.errstate(invalid="ignore"):
            apart = np.abs(left - right)
        apart[(left == right) | (np.isnan(left) & np.isnan(right))] = 0
        share = float(np.nan_to_num(apart, nan=np.inf).max()) / scale
        self.margins[kind] = max(share, self.margins.get(kind, 0.0))
        alone = kind == "leak" or (kind in ("batch", "padding") and "alone" not in where)
        same = kind == "leak" or (alone and kind == "batch")
        if share > (_SAME if same else self.agrees):
            self.faults.setdefault(kind, f"{name} differs by {share:.2g} ({where})")


def _axis(name: str, layout: Layout) -> int:
    return 1 if name == "logits" else 2
