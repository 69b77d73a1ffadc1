"""Sizes of named dims, and expressions of them such as ``past_length + tokens``."""

from __future__ import annotations

import ast
from collections.abc import Mapping

__all__ = ["evaluate_dim"]


def evaluate_dim(expression: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a dim, or ``None`` where a name in it has no size.

    Args:
        expression: A name, or sums, differences and products of names and integers.
        sizes: Sizes by name.
    """
    if expression in sizes:
        return sizes[expression]
    try:
        return _value(ast.parse(expression, mode="eval").body, sizes)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int | None:
    if isinstance(node, ast.Name):
        return sizes.get(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _value(node.left, sizes), _value(node.right, sizes)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() if right:
            return left // right
        case _:
            return None
