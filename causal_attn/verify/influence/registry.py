"""Rules by operator, and what a rule is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from causal_attn.verify.influence.graph import Graph, Node
from causal_attn.verify.influence.origin import Origin
from causal_attn.verify.influence.tensor import (
    Array,
    Sequenced,
    Tensor,
    Value,
    constant,
    join_words,
    lift,
    make,
    no_bits,
    unknown,
)

if TYPE_CHECKING:
    from causal_attn.verify.influence.bounds.extent import Extent

__all__ = [
    "FOLDED",
    "MICROSOFT",
    "MOST_DOUBTS",
    "RULES",
    "Call",
    "DataDependent",
    "Mode",
    "Rule",
    "Scope",
    "rule",
]

MICROSOFT = "com.microsoft"
_ROUNDED_GAP, _ROUNDED_SCORE = 0.999, 1.05
"""What float16 may take from a mask constant, and what it may add to a score."""

MOST_DOUBTS = 16
"""Bits set aside for the causes of doubt in one evaluation."""


class DataDependent(Exception):
    """A rule cannot say anything exact here; the message says why.

    The evaluator joins everything and names the node, so the verdict is never a guess.
    """


@dataclass
class Mode:
    """How one evaluation of the graph reads masks and gaps, and what it saw on the way.

    Attributes:
        positions: Input positions; the bits after them stand for causes of doubt.
        threshold: Smallest gap between a visible and a masked score that hides the masked one.
            Infinite: only ``-inf`` hides.
        optimistic: Operators without a rule pass nothing on. What leaks even so, leaks.
        doubts: Why something was joined rather than moved, in the order of their bits.
        largest_gap: Largest finite gap that was seen.
        score_bound: Smallest bound on ``|score|`` under which every gap used hides.
        measured: How large scores can be is followed too; what that proves hidden needs no
            `threshold`.
        largest_score: Largest bound on scores that hid something.
        proved_bound: As `score_bound`, of what was proved hidden.
    """

    positions: int
    threshold: float = float("inf")
    optimistic: bool = False
    largest_gap: float = 0.0
    score_bound: float = float("inf")
    measured: bool = False
    largest_score: float = 0.0
    proved_bound: float = float("inf")
    doubts: list[str] = field(default_factory=list)

    @property
    def words(self) -> int:
        """64-bit words of a bit set."""
        return -(-(self.positions + MOST_DOUBTS) // 64)

    def doubt(self, reason: str) -> int:
        """The bit that marks everything that depends on `reason`; the last one is shared."""
        if reason not in self.doubts:
            self.doubts.append(reason)
        return self.positions + min(self.doubts.index(reason), MOST_DOUBTS - 1)

    def hides(
        self, gap: Array, data: Array | int, underflow: float, score: float = float("inf")
    ) -> Array:
        """Which scores a gap hides; records the bound under which that is so.

        Args:
            gap: Lowest constant of the row's best score minus highest constant of this one.
            data: How many times ``|score|`` can work against the gap.
            underflow: Exponent below which ``exp`` is zero.
            score: Bound on ``|score|``.
        """
        finite = gap[np.isfinite(gap)]
        self.largest_gap = max(self.largest_gap, float(finite.max(initial=0.0)))
        if np.isposinf(gap).any():
            self.largest_gap = float("inf")
        with np.errstate(invalid="ignore"):
            hidden: Array = gap >= self.threshold
        if hidden.any():
            bound = np.where(hidden, (gap - underflow) / np.maximum(data, 1), np.inf)
            self.score_bound = min(self.score_bound, float(bound.min()))
        if np.isfinite(score):
            proved = gap * _ROUNDED_GAP - underflow > data * (score * _ROUNDED_SCORE)
            if proved.any():
                bound = np.where(proved, (gap - underflow) / np.maximum(data, 1), np.inf)
                self.proved_bound = min(self.proved_bound, float(bound.min()))
                self.largest_score = max(self.largest_score, score)
                hidden = hidden | proved
        return hidden


class Scope(Protocol):
    """What a rule with a body in it, such as Loop, asks of the evaluator."""

    mode: Mode

    def body(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        """Evaluate a subgraph, which sees the names around it."""
        ...

    def same(self, one: str, other: str) -> Array | None:
        """Where two tensors hold one and the same element; ``None``: nowhere."""
        ...


@dataclass(slots=True)
class Call:
    """One node with its inputs: what a rule is given."""

    node: Node
    inputs: list[Value | None]
    opset: int
    scope: Scope
    attributes: dict[str, Any] = field(default_factory=dict)
    origins: Sequence[Origin] = ()
    extents: Sequence[Extent] = ()

    @property
    def mode(self) -> Mode:
        """The mode of this evaluation."""
        return self.scope.mode

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: int, float, str, list, array, or `Graph`."""
        return self.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """The optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def score(self, *indices: int) -> float:
        """Bound on the magnitude of the sum of inputs, less the constants of masks."""
        if not self.extents:
            return float("inf")
        return sum(self.extents[index].size for index in indices)

    def tensor(self, index: int) -> Tensor:
        """The tensor at `index`; a node without it is broken, or beyond this rule."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, Tensor):
            raise DataDependent(f"input {index} must be a tensor")
        return value

    def optional(self, index: int) -> Tensor | None:
        """The tensor at `index`, or ``None`` where the input is left out."""
        return self.tensor(index) if self.has(index) else None

    def sequence(self, index: int) -> Sequenced:
        """The sequence at `index`."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, Sequenced):
            raise DataDependent(f"input {index} must be a sequence")
        return value

    def values(self, index: int) -> Array:
        """The known values of the input at `index`, such as a shape or an axis."""
        value = self.tensor(index).value
        if value is None:
            raise DataDependent(f"its input {self.node.inputs[index]!r} depends on data")
        return value

    def ints(self, index: int, name: str, default: list[int] | None = None) -> list[int] | None:
        """Integers from the input at `index`, or from the attribute of older opsets."""
        if self.has(index):
            return [int(item) for item in self.values(index).reshape(-1)]
        given = self.attr(name, default)
        return None if given is None else [int(item) for item in given]

    def constant(self, array: Any, dtype: Any = None) -> Tensor:
        """A known tensor."""
        return constant(np.asarray(array, dtype), self.mode.words)

    def reached_by(self, result: Tensor, *indices: int) -> Tensor:
        """`result`, all of it reached by whatever reaches the inputs at `indices`.

        For weights, scales and states: no input reaches them as a rule, and where one does,
        every element may depend on it.
        """
        reached = [join_words(self.tensor(index)) for index in indices if self.has(index)]
        if not any(word for words in reached for word in words):
            return result
        bits = list(result.bits)
        for words in reached:
            bits = [plane | np.uint64(word) for plane, word in zip(bits, words, strict=True)]
        return unknown(result.shape, result.dtype, bits)

    def doubted(self, result: Tensor, where: Array, index: int, reason: str) -> Tensor:
        """`result`, not known where what was dropped from the input at `index` may show.

        Args:
            result: What the rule says.
            where: Plane of the elements in question.
            index: The input.
            reason: What may show.
        """
        reach = self.origins[index].reach
        if self.mode.optimistic or not where.any() or not any(reach):
            return result
        words = list(reach)
        bit = self.mode.doubt(f"{self.node}: {reason}")
        words[bit // 64] |= 1 << (bit % 64)
        where = lift(where, result.rank)
        known = result.known & ~where
        bits = [
            np.where(where, plane | np.uint64(word), plane)
            for plane, word in zip(result.bits, words, strict=True)
        ]
        nothing = np.zeros((), result.dtype)
        low, high = (np.where(where, nothing, end) for end in (result.low, result.high))
        return make(result.shape, result.dtype, bits, known, low, high)

    def spoiled(self, result: Tensor, where: Array, index: int, reason: str) -> Tensor:
        """`result`, zero or NaN where it is a zero that the input at `index` may turn to NaN.

        Args:
            result: What the rule says for finite data.
            where: Plane of the elements in question.
            index: The input; what reaches its elements decides.
            reason: What may be NaN.
        """
        if self.mode.optimistic or not where.any():
            return result
        source = self.tensor(index)
        bit = self.mode.doubt(f"{self.node}: {reason}")
        where = lift(where, result.rank)
        bits = []
        for word, (plane, own) in enumerate(zip(result.bits, source.bits, strict=True)):
            doubt = np.uint64(1 << (bit % 64) if bit // 64 == word else 0)
            bits.append(np.where(where, plane | lift(own, result.rank) | doubt, plane))
        void = where if result.void is None else result.void | where
        return make(
            result.shape, result.dtype, bits, result.known & ~where, result.low, result.high,
            void=void,
        )  # fmt: skip

    def silent(self, shape: Sequence[int], dtype: Any) -> Tensor:
        """Values nobody knows and no input reaches."""
        return unknown(shape, dtype, no_bits(len(shape), self.mode.words))


Rule = Callable[[Call], Sequence[Value]]

RULES: dict[tuple[str, str], Rule] = {}
FOLDED: set[tuple[str, str]] = set()
"""Operators that the evaluator computes outright where all inputs are known."""


def rule(*names: str, domain: str = "", fold: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for operators of one domain.

    Args:
        names: Operator types.
        domain: ``""`` is ONNX's own.
        fold: Known inputs are computed by the evaluator; the rule sees data only.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[domain, name] = function
            if fold:
                FOLDED.add((domain, name))
        return function

    return register
