"""Dims written as expressions of other dims, such as ``past_tokens + tokens``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["DimExpression"]

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}

_Evaluate = Callable[[Mapping[str, int]], int]


@dataclass(frozen=True, slots=True)
class DimExpression:
    """A dim that follows from named dims: sums, differences, products and ``//``.

    Attributes:
        text: As the contract writes it.
        names: The named dims in it.
        evaluate: The size, given the sizes of all `names`. `ZeroDivisionError` where it has none.
    """

    text: str
    names: frozenset[str]
    evaluate: _Evaluate

    @classmethod
    def parse(cls, text: str) -> DimExpression | None:
        """The expression in `text`; ``None`` if it is a plain name or not understood.

        A text that is not understood, such as ``floor(n/2)``, is then a name like any other: it
        has one size throughout a call.
        """
        # The contract comes from a file: a deeply nested text costs the parser its stack.
        if len(text) > 200:
            return None
        try:
            body = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        if not isinstance(body, ast.BinOp):
            return None
        names: set[str] = set()
        evaluate = _compiled(body, names)
        return None if evaluate is None else cls(text, frozenset(names), evaluate)


def _compiled(node: ast.expr, names: set[str]) -> _Evaluate | None:
    if isinstance(node, ast.Name):
        name = node.id
        names.add(name)
        return lambda sizes: sizes[name]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
        return lambda _sizes: value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        apply = _OPERATORS[type(node.op)]
        left, right = _compiled(node.left, names), _compiled(node.right, names)
        if left is not None and right is not None:
            return lambda sizes: apply(left(sizes), right(sizes))
    return None
