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

import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from causal_attn.export.capture.of_sizes import OfSizes

__all__ = ["is_causal_mask", "seen_prefix"]

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
    found = OfSizes.find(program, mask)
    if found is None or not all(map(_is_small, found.nodes)):
        return False
    constants = found.constants.values()
    sizes = [size for tensor in constants for size in tensor.shape]
    if max(sizes, default=0) > LONGEST or not all(map(_has_small_numbers, constants)):
        return False
    lengths = {tokens} if isinstance(tokens, int) else {*LENGTHS, *sizes} - {0}
    seen = 0
    for length in sorted(lengths):
        value = _at(found, tokens, length)
        if value is None and length > min(sizes, default=length):
            # Behind the end of a buffer the module does not run either.
            break
        if value is None or not _is_causal(value, length):
            return False
        seen = length
    return seen == tokens or seen > 2 * LARGEST_NUMBER


def seen_prefix(program: ExportedProgram, mask: Node, tokens: int | SymInt) -> int | None:
    """How many first tokens see one another under `mask`, all others being causal.

    ``None``: it is no such mask, or none of sizes alone. For an error's words, not for a claim.
    """
    found = OfSizes.find(program, mask)
    lengths = (tokens,) if isinstance(tokens, int) else LENGTHS[::-1]
    for length in lengths:
        value = _at(found, tokens, length) if found else None
        if value is None or value.shape[-2:] != (length, length):
            continue
        seen = value if value.dtype == torch.bool else value == 0
        first = int(seen[..., 0, :].sum(-1).max())
        places = torch.arange(length)
        wanted = (places <= places[:, None]) | (places < first)
        return first if 1 < first < length and bool((seen == wanted).all()) else None
    return None


def _has_small_numbers(constant: Tensor) -> bool:
    wide = constant.detach().cpu().double().abs()
    return bool(((wide <= LARGEST_NUMBER) | wide.isinf()).all())


def _is_small(node: Node) -> bool:
    """Whether there is no number in `node` but small ones."""
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


def _at(found: OfSizes, tokens: int | SymInt, length: int) -> Tensor | None:
    """The mask at `length` tokens; ``None``: it does not run there, or fits no scores."""
    sizes = dict.fromkeys(found.symbols, OTHER_SIZE)
    if isinstance(tokens, SymInt):
        sizes |= {tokens.node.expr: length}
    result = found.run(sizes)
    fits = isinstance(result, Tensor) and all(size in (1, length) for size in result.shape[-2:])
    return result if fits else None


def _is_causal(mask: Tensor, tokens: int) -> bool:
    if mask.dim() < 2 or mask.shape[-2:] != (tokens, tokens):
        return False
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if mask.dtype != torch.bool:
        wanted = torch.zeros(tokens, tokens, dtype=mask.dtype).masked_fill(~visible, -torch.inf)
        return bool((mask == wanted).all())
    return bool((mask == visible).all())
