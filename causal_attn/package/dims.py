"""Dims as contracts and graphs write them: names, sizes, and expressions of both.

One reader for all: the runtime checks feeds with it, the verifier makes feeds with it, and the
influence proof sizes its abstract tensors with it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["DimExpression", "sizes_within"]

MAX_LENGTH = 200
"""The text comes from a file: one that nests deeply costs the parser its stack."""

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}

_Linear = Mapping[str, int]
"""Factor by name; the constant is under ``""``, which is no name."""


@dataclass(frozen=True, slots=True)
class DimExpression:
    """A size that follows from named dims by ``+``, ``-``, ``*`` and ``//`` with integers.

    Attributes:
        text: As it is written.
        names: The named dims in it.
    """

    text: str
    names: frozenset[str]
    _body: ast.expr | None = field(repr=False, compare=False)

    @classmethod
    @lru_cache(maxsize=1024)
    def parse(cls, text: str) -> DimExpression:
        """The expression in `text`.

        A text that is not understood, such as ``floor(n/2)`` or ``past.0``, is a name like any
        other: it has one size throughout a call.
        """
        body = _parsed(text)
        if body is None:
            return cls(text, frozenset({text}), None)
        names = frozenset(node.id for node in ast.walk(body) if isinstance(node, ast.Name))
        return cls(text, names, body)

    @property
    def is_name(self) -> bool:
        """Whether it is one named dim and nothing else."""
        return self.names == {self.text}

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """The size where named dims have `sizes`; ``None`` where it has none.

        That is where a name has no size, or a division is by zero.
        """
        if self._body is None:
            return sizes.get(self.text)
        if not self.names <= sizes.keys():
            return None
        try:
            return _evaluated(self._body, sizes)
        except ZeroDivisionError:
            return None

    def factor(self, name: str) -> int | None:
        """How much the size grows with each one of `name`: 0 where it is not in the expression.

        ``None`` where that is no fixed number, as in ``heads * tokens`` or ``tokens // 2``.
        """
        if name not in self.names:
            return 0
        if self._body is None:
            return 1
        linear = _linear(self._body)
        return None if linear is None else linear.get(name, 0)

    def is_sum_of(self, *names: str) -> bool:
        """Whether it is ``a + b`` of just these names, in any order."""
        linear = {self.text: 1} if self._body is None else _linear(self._body)
        return linear is not None and {
            name: factor for name, factor in linear.items() if factor
        } == dict.fromkeys(names, 1)

    def renamed(self, names: Mapping[str, str]) -> DimExpression:
        """The expression with other names for those in `names`, all exchanged at once."""
        if self._body is None:
            return self.parse(names.get(self.text, self.text))
        return self.parse(
            re.sub(r"[^\W\d]\w*", lambda found: names.get(found[0], found[0]), self.text)
        )


def _parsed(text: str) -> ast.expr | None:
    if len(text) > MAX_LENGTH:
        return None
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    # A name is kept as it is written: the parser would normalise its letters.
    return body if not isinstance(body, ast.Name) and _is_understood(body) else None


def _is_understood(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return (
            type(node.op) in _OPERATORS
            and _is_understood(node.left)
            and _is_understood(node.right)
        )
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Name)


def _evaluated(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Name():
            return sizes[node.id]
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp():
            left, right = _evaluated(node.left, sizes), _evaluated(node.right, sizes)
            return _OPERATORS[type(node.op)](left, right)
    raise AssertionError(f"`node` must have been understood, got {ast.dump(node)}.")


def _linear(node: ast.expr) -> _Linear | None:
    """Factors of the names in a sum of multiples; ``None`` where the expression is none."""
    match node:
        case ast.Name():
            return {node.id: 1}
        case ast.Constant(value=int(value)):
            return {"": value}
        case ast.BinOp():
            left, right = _linear(node.left), _linear(node.right)
            if left is None or right is None:
                return None
            match node.op:
                case ast.Add():
                    return _added(left, right, 1)
                case ast.Sub():
                    return _added(left, right, -1)
                case ast.Mult():
                    if left.keys() <= {""}:
                        left, right = right, left
                    if right.keys() <= {""}:
                        return {name: factor * right.get("", 0) for name, factor in left.items()}
    return None


def _added(left: _Linear, right: _Linear, times: int) -> _Linear:
    return {name: left.get(name, 0) + times * right.get(name, 0) for name in {**left, **right}}


def sizes_within(sizes: Iterable[int], low: int, high: int | None) -> tuple[int, ...]:
    """Those of `sizes` from `low` to `high`, ascending; the nearest end if there are none."""
    given = sorted({*sizes})
    kept = tuple(size for size in given if low <= size and (high is None or size <= high))
    return kept or (low if high is None or given[-1] < low else high,)
