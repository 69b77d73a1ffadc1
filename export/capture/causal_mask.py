"""Whether an attention mask in a traced program is the causal one, at every length.

A user writes ``torch.ones(n, n).tril()``, ``full(-inf).triu(1)``, a comparison of two ``arange``,
or cuts ``[:n, :n]`` out of a buffer. What such a mask says is a function of sizes alone, so it is
run here, at several numbers of tokens, and compared. A window would look causal at lengths that it
covers: so a mask with any number in it but small ones and infinities is not taken, be it in the
program or in a buffer, and a buffer is looked at as a whole.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

__all__ = ["is_causal_mask"]

LENGTHS = (1, 2, 3, 5, 8, 17, 64, 257, 1031)

LARGEST_NUMBER = 4
"""Axes of a mask and the shift of its diagonal are no more; a window is."""

LONGEST = 8192
"""Of buffers that are looked at."""

OTHER_SIZE = 2
"""Of dims that are not the tokens: a batch, heads."""


def is_causal_mask(program: ExportedProgram, mask: Node, tokens: int | SymInt) -> bool:
    """Whether `mask` hides exactly the future, for queries and keys of `tokens` each.

    Args:
        program: What `mask` is in; it is not changed.
        mask: ``[…, tokens, tokens]``, bool (True: may be seen) or floating (0 or ``-inf``, added).
        tokens: As torch.export knows it: a number, or a symbol.
    """
    nodes = list(_ancestors(mask))
    constants = {}
    for node in nodes:
        if node.op == "placeholder":
            constant = _constant(program, node)
            if constant is None or not _has_small_numbers(constant):
                return False
            constants[node] = constant
        elif node.op != "call_function" or not _is_of_sizes(node):
            return False
    sizes = [size for tensor in constants.values() for size in tensor.shape]
    if max(sizes, default=0) > LONGEST:
        return False
    lengths = {tokens} if isinstance(tokens, int) else {*LENGTHS, *sizes} - {0}
    seen = 0
    for length in sorted(lengths):
        found = _run(nodes, constants, tokens, length)
        if found is None and length > min(sizes, default=length):
            # Behind the end of a buffer the module does not run either.
            break
        if found is None or not _is_causal(found, length):
            return False
        seen = length
    return seen == tokens or seen > 2 * LARGEST_NUMBER


def _ancestors(mask: Node) -> Iterator[Node]:
    """What `mask` is computed from, in the order of the graph, down to constants and sizes."""
    found: set[Node] = set()
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if not isinstance(node.meta.get("val"), SymInt):
                waiting += node.all_input_nodes
    return (node for node in mask.graph.nodes if node in found)


def _constant(program: ExportedProgram, node: Node) -> Tensor | None:
    signature = program.graph_signature
    name = str(node.target)
    name = signature.inputs_to_buffers.get(name) or (
        signature.inputs_to_lifted_tensor_constants.get(name, "")
    )
    value = program.state_dict.get(name, program.constants.get(name))
    return value if isinstance(value, Tensor) else None


def _has_small_numbers(constant: Tensor) -> bool:
    wide = constant.detach().cpu().double().abs()
    return bool(((wide <= LARGEST_NUMBER) | wide.isinf()).all())


def _is_of_sizes(node: Node) -> bool:
    """Whether it does not write, draws nothing at random, and has no number but small ones."""
    if isinstance(node.target, torch._ops.OpOverload) and (
        node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags
    ):
        return False
    size = node.meta.get("val")
    if isinstance(size, SymInt):
        numbers = [float(atom) for atom in size.node.expr.atoms() if atom.is_number]
    else:
        leaves = tree_leaves((node.args, node.kwargs))
        numbers = [leaf for leaf in leaves if type(leaf) in (int, float)]
    return all(
        abs(number) <= LARGEST_NUMBER or math.isinf(number) or number == sys.maxsize
        for number in numbers
    )


def _run(
    nodes: list[Node], constants: dict[Node, Tensor], tokens: int | SymInt, length: int
) -> Tensor | None:
    """The mask at `length` tokens; ``None``: it does not run there, or fits no scores."""
    values: dict[Node, Any] = dict(constants)
    for node in nodes:
        size = node.meta.get("val")
        if isinstance(size, SymInt):
            values[node] = _size(size, tokens, length)
        elif node not in constants:
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            try:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            except (RuntimeError, IndexError, TypeError, ValueError):
                return None
    result = values[nodes[-1]]
    fits = isinstance(result, Tensor) and all(size in (1, length) for size in result.shape[-2:])
    return result if fits else None


def _size(size: SymInt, tokens: int | SymInt, length: int) -> int:
    expression = size.node.expr
    symbols = dict.fromkeys(expression.free_symbols, OTHER_SIZE)
    if isinstance(tokens, SymInt):
        symbols |= {tokens.node.expr: length}
    return int(expression.subs(symbols))


def _is_causal(mask: Tensor, tokens: int) -> bool:
    if mask.dim() < 2 or mask.shape[-2:] != (tokens, tokens):
        return False
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if mask.dtype != torch.bool:
        wanted = torch.zeros(tokens, tokens, dtype=mask.dtype).masked_fill(~visible, -torch.inf)
        return bool((mask == wanted).all())
    return bool((mask == visible).all())
