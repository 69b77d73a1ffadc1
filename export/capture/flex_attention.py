"""``flex_attention`` of torch, which compiles itself, by its own definition in eager torch.

What it computes is said by two functions of positions: `mask_mod` tells which key a query may see,
`score_mod` changes a score. torch maps them over all positions with vmap, which torch.export does
not take apart; here they are called once, with positions that broadcast. A block mask lists
besides which blocks have anything to see, for a kernel's speed alone: while tracing it lists none.

Where scores stay as they are, the mask over all positions is what ``scaled_dot_product_attention``
takes, and whether it is the causal one is found there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.flex_attention import FlexAttentionHOP, sdpa_dense
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

__all__ = ["flex_as_masks", "flex_by_definition"]

Results = tuple[Tensor, Tensor, Tensor]
"""Output, and the logarithm of the sum of a row's exponentials and its largest score, over log 2.

torch multiplies by log 2 what is asked for; what is not is an empty tensor.
"""


@contextmanager
def flex_by_definition(definition: Callable[..., Results] = sdpa_dense) -> Iterator[None]:
    """Inside this block ``flex_attention`` is `definition`, and nothing is compiled."""

    def call(_: Any, *args: Any, **kwargs: Any) -> Results:
        return definition(*args, **kwargs)

    with (
        patch.object(FlexAttentionHOP, "__call__", call),
        # torch compiles what it is called with unless this is set. A release without it does not.
        patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, create=True),
    ):
        yield


@contextmanager
def flex_as_masks() -> Iterator[None]:
    """Inside this block, for tracing, ``flex_attention`` and its block masks are plain tensor ops.

    They hold for lengths that are no multiples of a block, and no numbers.
    """
    with (
        flex_by_definition(_attention),
        patch.object(flex, "_vmap_for_bhqkv", _broadcasting),
        patch.object(flex, "_convert_mask_to_block_mask", lambda mask, *_, **__: (mask, None)),
        patch.object(flex, "_create_sparse_block_from_block_mask", _one_block),
        patch.object(flex, "_transpose_ordered", lambda *_: (None, None)),
    ):
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Mapping[str, Any],
    score_mod_buffers: tuple[Tensor, ...] = (),
    mask_mod_buffers: tuple[Tensor, ...] = (),
) -> Results:
    """`sdpa_dense` of torch for sizes that are symbols, except that a key of -inf is not seen."""
    places = _places(*query.shape[:3], key.shape[2])
    mask_mod = block_mask[-1]
    seen = None
    if mask_mod is not flex.noop_mask:
        with _Lookups():
            seen = mask_mod(*places, *mask_mod_buffers)
    nothing = query.new_empty(0)
    # Not the comparison itself: of sizes that are symbols it is no bool.
    grouped = True if query.shape[1] != key.shape[1] else False  # noqa: SIM210
    if key.shape[0] == 1:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    if score_mod is flex._identity and not kernel_options["OUTPUT_LOGSUMEXP"]:
        output = F.scaled_dot_product_attention(
            query, key, value, seen, scale=scale, enable_gqa=grouped
        )
        return output, nothing, nothing
    if grouped:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    # A tensor, not a Python float: see causal_attn.attention.reference.
    factor = torch.full((), scale, dtype=wide)
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * factor
    with _Lookups():
        scores = score_mod(scores, *places, *score_mod_buffers).to(wide)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    # Softmax makes NaN of a row that is -inf throughout, which sees nothing.
    weights = scores.softmax(-1).masked_fill(scores == float("-inf"), 0)
    output = weights.to(query.dtype) @ value
    if query.stride(1) < query.stride(2):
        # torch keeps the query's layout, and a view of the result may count on it.
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
    if not kernel_options["OUTPUT_LOGSUMEXP"]:
        return output, nothing, nothing
    return output, scores.logsumexp(-1) / math.log(2), nothing


def _places(*sizes: int) -> list[Tensor]:
    """Batch, head, query and key, each along an axis of its own."""
    shapes = [[-1 if at == axis else 1 for at in range(4)] for axis in range(4)]
    return [torch.arange(size).view(shape) for size, shape in zip(sizes, shapes, strict=True)]


def _broadcasting(function: Callable[..., Tensor], prefix: tuple[int, ...], **_: Any) -> Any:
    """`function` over all positions, as torch's own vmaps of it are: for ``create_mask``."""

    def mapped(*args: Any) -> Tensor:
        scores, places, others = (
            args[: len(prefix)],
            args[len(prefix) :][:4],
            args[len(prefix) + 4 :],
        )
        sizes = [place.shape[0] for place in places]
        with _Lookups():
            return function(*scores, *_places(*sizes), *others).expand(sizes)

    return mapped


class _Lookups(TorchFunctionMode):
    """``table[i][j]`` at positions `i` and `j` that broadcast is ``table[i, j]``.

    Position by position the first lookup is a row; for all positions at once it has their four
    axes in front.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[int, tuple[Tensor, Tensor, tuple[Any, ...]]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        table, index = args
        index = index if isinstance(index, tuple) else (index,)
        _, table, earlier = self._rows.get(id(table), (table, table, ()))
        result = func(table, earlier + index)
        if any(isinstance(place, Tensor) for place in tree_leaves(earlier + index)):
            # Held, so that no other tensor gets its id.
            self._rows[id(result)] = (result, table, earlier + index)
        return result


def _one_block(
    _: Any, mask_mod: Callable[..., Tensor], seq_lengths: tuple[int, int], *block_size: int
) -> flex.BlockMask:
    """A block mask for any lengths, of which nothing but `mask_mod` is read."""
    return flex.BlockMask.from_kv_blocks(
        torch.ones(1, 1, 1, dtype=torch.int32),
        torch.zeros(1, 1, 1, 1, dtype=torch.int32),
        mask_mod=mask_mod,
        seq_lengths=seq_lengths,
        BLOCK_SIZE=(block_size[0], block_size[1]),
    )
