"""What the export of a captured graph asks of lengths, as guards of torch.compile."""

from __future__ import annotations

from collections.abc import Mapping

import sympy  # type: ignore[import-untyped]
import torch

from causal_attn.export.capture.captured import Captured

__all__ = ["guard_lengths", "is_fixed"]


def guard_lengths(
    lengths: Mapping[str, tuple[int | torch.SymInt, ...]], captured: Captured
) -> tuple[sympy.Expr, ...]:
    """Tell torch.compile what an export asks of lengths; it then guards that.

    Tracing and writing a graph decide branches, such as whether a slice ends before the tensor
    does. torch.export keeps the decisions to itself, and torch.compile would run the graph where
    they are wrong.

    Args:
        lengths: Sizes of every input as torch.compile has them, integers or symbols.
        captured: The export, after it was lowered: that decides branches too.

    Returns:
        All that holds of the symbols of torch.compile where it runs this graph.
    """
    pairs = [
        (lengths[name][axis], size)
        for name, value in captured.inputs.items()
        for axis, size in enumerate(value.shape)
    ]
    renamed: dict[sympy.Expr, sympy.Expr] = {}
    for theirs, ours in pairs:
        if not is_fixed(ours) and (symbol := _expression(ours)).is_symbol:
            renamed.setdefault(symbol, _expression(theirs))
    conditions = {
        sympy.Eq(_expression(theirs), _expression(ours).xreplace(renamed))
        for theirs, ours in pairs
    }
    for _, ours in pairs:
        if isinstance(ours, torch.SymInt):
            env = ours.node.shape_env
            conditions |= {env.replace(guard.expr).xreplace(renamed) for guard in env.guards}
    held: list[sympy.Expr] = []
    for theirs in (size for size, _ in pairs if isinstance(size, torch.SymInt)):
        env = theirs.node.shape_env
        for condition in sorted(conditions, key=str):
            # What is left of torch.export's own symbols belongs to no length of an input.
            if condition.free_symbols <= env.backed_var_to_val.keys():
                env.evaluate_expr(condition)
        held = [guard.expr for guard in env.guards]
        break
    return tuple(held)


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def is_fixed(size: int | torch.SymInt) -> bool:
    """Whether `size` is one number: a symbol that the code ties to one is still a symbol."""
    return bool(_expression(size).is_number)
