"""ONNX Runtime's own attention operators: ``Attention``, ``MultiHeadAttention`` and grouped query.

What they do is what ONNX Runtime 1.32.0's CPU kernels do, which is not always what their
documentation says: ``unidirectional`` adds the lowest finite number to the scores, and leaves the
last query row unmasked, which shows where there are more keys than queries and no past.
"""

from __future__ import annotations

import numpy as np

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.attention import (
    attend,
    largest_score,
    lowest,
    merge_heads,
    split_heads,
    written_mask,
)
from causal_attn.verify.influence.rules.combine import add, merge, opaque, select
from causal_attn.verify.influence.rules.movement import (
    concat,
    drop_axes,
    insert_axes,
    reshape,
    slice_axis,
    transpose,
)
from causal_attn.verify.influence.rules.products import matmul
from causal_attn.verify.influence.rules.reductions import join_axes
from causal_attn.verify.influence.tensor import Array, Tensor, unknown

__all__: list[str] = []


def _unidirectional(rows: int, total: int, past: int) -> Array:
    """What the kernels allow: every row but the last is masked past its own place."""
    allowed = np.ones((1, 1, rows, total), bool)
    for row in range(rows - 1):
        allowed[..., row, past + row + 1 :] = False
    return allowed


def _padding_mask(call: Call, mask: Tensor, like: Tensor, rows: int, total: int) -> Tensor:
    """A key padding mask, 1 for a token and 0 for padding, as something to add."""
    batch = like.shape[0]
    filler = call.attr("mask_filter_value", -10000.0)
    opened, closed = call.constant(0.0, like.dtype), call.constant(filler, like.dtype)
    columns = call.constant(np.arange(total).reshape(1, 1, 1, -1), np.int64)
    if mask.shape == (batch,):
        ends = reshape(mask, (batch, 1, 1, 1))
        return select(merge(columns, ends, np.less), opened, closed)
    if mask.shape == (batch, total):
        mask = reshape(mask, (batch, 1, 1, total))
    elif mask.shape == (batch, rows, total):
        mask = insert_axes(mask, [1])
    elif mask.rank == 4:
        largest = mask.shape[-1]
        mask = slice_axis(mask, 3, 0, total)
        mask = slice_axis(mask, 2, total - rows, total) if largest >= total else mask
    elif mask.rank == 1 and mask.shape[0] == 2 * batch:
        ends = reshape(slice_axis(mask, 0, 0, batch), (batch, 1, 1, 1))
        starts = reshape(slice_axis(mask, 0, batch, 2 * batch), (batch, 1, 1, 1))
        before = merge(columns, ends, np.less)
        return select(merge(before, merge(columns, starts, np.greater_equal), np.logical_and),
                      opened, closed)  # fmt: skip
    else:
        raise DataDependent(f"its mask has the shape {list(mask.shape)}")
    visible = merge(mask, call.constant(0, mask.dtype), np.not_equal)
    return select(visible, opened, closed)


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(call: Call) -> list[Tensor]:
    heads = call.attr("num_heads")
    query, key, value = call.tensor(0), call.optional(1), call.optional(2)
    if query.rank == 5:
        parts = [drop_axes(slice_axis(query, 3, at, at + 1), [3]) for at in range(3)]
        query, key, value = (transpose(part, (0, 2, 1, 3)) for part in parts)
    elif key is not None and key.rank == 5:
        parts = [drop_axes(slice_axis(key, 3, at, at + 1), [3]) for at in range(2)]
        key, value = (transpose(part, (0, 2, 1, 3)) for part in parts)
    if key is None or value is None:
        raise DataDependent("it has no key or no value")
    if (bias := call.optional(3)) is not None and query.rank == 3:
        widths = [query.shape[-1], key.shape[-1] if key.rank == 3 else 0]
        query = add(query, slice_axis(bias, 0, 0, widths[0]))
        if key.rank == 3 and value.rank == 3:
            key = add(key, slice_axis(bias, 0, widths[0], sum(widths)))
            value = add(value, slice_axis(bias, 0, sum(widths), None))
    query, key, value = (split_heads(tensor, heads) for tensor in (query, key, value))
    past = 0
    if (past_key := call.optional(6)) is not None:
        if call.has(8):
            raise DataDependent("it shares a cache buffer")
        past = past_key.shape[2]
        key, value = concat([past_key, key], 2), concat([call.tensor(7), value], 2)
    rows, total = query.shape[2], key.shape[2]
    masks = []
    if call.attr("unidirectional", 0):
        allowed = _unidirectional(rows, total, past)
        masks.append(written_mask(allowed, lowest(query.dtype), query))
    if (mask := call.optional(4)) is not None:
        masks.append(_padding_mask(call, mask, query, rows, total))
    if (bias := call.optional(5)) is not None:
        masks.append(bias)
    largest = largest_score(call)
    if bias is not None:
        largest += call.score(5)
    output, _, weights = attend(call.mode, query, key, value, masks, largest=largest)
    return [merge_heads(output), key, value, weights]


@rule("Attention", domain=MICROSOFT)
def _attention(call: Call) -> list[Tensor]:
    data, weight = call.tensor(0), call.tensor(1)
    heads = call.attr("num_heads")
    sizes = call.attr("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
    packed = matmul(data, weight)
    if (bias := call.optional(2)) is not None:
        packed = add(packed, bias)
    ends = np.cumsum([0, *sizes])
    query, key, value = (
        split_heads(slice_axis(packed, 2, int(ends[at]), int(ends[at + 1])), heads)
        for at in range(3)
    )
    past = 0
    if (cache := call.optional(4)) is not None:
        if call.attr("past_present_share_buffer", 0):
            raise DataDependent("it shares a cache buffer")
        past = cache.shape[3]
        key = concat([drop_axes(slice_axis(cache, 0, 0, 1), [0]), key], 2)
        value = concat([drop_axes(slice_axis(cache, 0, 1, 2), [0]), value], 2)
    rows, total = query.shape[2], key.shape[2]
    masks = []
    if call.attr("unidirectional", 0):
        masks.append(written_mask(_unidirectional(rows, total, past), lowest(query.dtype), query))
    if (mask := call.optional(3)) is not None:
        masks.append(_padding_mask(call, mask, query, rows, total))
    if (bias := call.optional(5)) is not None:
        masks.append(bias)
    output, _, _ = attend(call.mode, query, key, value, masks)
    results = [merge_heads(output)]
    if len(call.node.outputs) > 1:
        results.append(concat([insert_axes(key, [0]), insert_axes(value, [0])], 0))
    return results


@rule("GroupQueryAttention", domain=MICROSOFT)
def _group_query(call: Call) -> list[Tensor]:
    heads, kv_heads = call.attr("num_heads"), call.attr("kv_num_heads")
    query, key, value = call.tensor(0), call.optional(1), call.optional(2)
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * kv_heads)
        packed = query
        query = slice_axis(packed, 2, 0, heads * size)
        key = slice_axis(packed, 2, heads * size, (heads + kv_heads) * size)
        value = slice_axis(packed, 2, (heads + kv_heads) * size, None)
    query = split_heads(query, heads)
    key, value = split_heads(key, kv_heads), split_heads(value, kv_heads)
    query, key = _rotated(call, query), _rotated(call, key)
    if call.has(12) or call.attr("sliding_window_cache", 0):
        raise DataDependent("its cache is quantized, ragged or a sliding window")
    if any(call.has(at) for at in (14, 15, 16)):
        raise DataDependent("its queries are normalized or padded inside")
    rows = query.shape[2]
    totals = call.values(5).reshape(-1) + 1
    caches = [_written(call, at, fresh, totals, rows) for at, fresh in ((3, key), (4, value))]
    columns = np.arange(caches[0].shape[2]).reshape(1, 1, 1, -1)
    places = np.arange(rows).reshape(1, 1, -1, 1) + (totals - rows).reshape(-1, 1, 1, 1)
    allowed = columns <= places
    if not call.attr("causal", 1):
        allowed = (columns < totals.reshape(-1, 1, 1, 1)) & (places >= 0)
    window = call.attr("local_window_size", -1)
    if not window:
        raise DataDependent("its window is 0 tokens wide")
    if window > 0:
        allowed &= columns > places - window
    masks = [written_mask(allowed, -np.inf, query)]
    if (bias := call.optional(10)) is not None:
        if bias.shape[-1] < columns.shape[-1]:
            short = (*bias.shape[:-1], columns.shape[-1] - bias.shape[-1])
            bias = concat([bias, call.constant(np.zeros(short), bias.dtype)], -1)
        masks.append(bias)
    output, _, weights = attend(call.mode, query, caches[0], caches[1], masks)
    # How many tokens there are and what the sinks take is known as a rule; if not, all see it.
    output, weights = (call.reached_by(item, 6, 11) for item in (output, weights))
    return [merge_heads(output), *caches, weights]


def _rotated(call: Call, tensor: Tensor) -> Tensor:
    """Queries or keys with what reaches the rotation; features of a token are mixed."""
    if not call.attr("do_rotary", 0):
        return tensor
    parts = [join_axes(tensor, [tensor.rank - 1])]
    if (positions := call.optional(9)) is not None:
        if positions.shape != (tensor.shape[0], tensor.shape[2]):
            return call.reached_by(parts[0], 7, 8, 9)
        row = insert_axes(positions, [1, 3])
        parts.append(unknown(row.shape, tensor.dtype, row.bits))
    return call.reached_by(opaque(parts), 7, 8)


def _has_present(call: Call) -> bool:
    names = [*call.node.outputs, None, None, None]
    return bool(names[1]) and bool(names[2])


def _written(call: Call, at: int, fresh: Tensor, totals: Array, rows: int) -> Tensor:
    """The cache with the new rows at the end of what it holds, row by row of the batch.

    Keys and values of no token are "shared KV": the cache holds those of the queries too.
    """
    cache = call.optional(at)
    if cache is not None and not fresh.shape[2]:
        if (most := int(totals.max(initial=0))) > cache.shape[2]:
            raise DataDependent(f"`seqlens_k` says {most} tokens for a cache of {cache.shape[2]}")
        if int(totals.min(initial=rows)) < rows:
            raise DataDependent(f"`seqlens_k` says fewer tokens than its {rows} queries")
        return cache
    held = cache.shape[2] if cache is not None else 0
    capacity = max(held, int(totals.max(initial=0)))
    results = []
    if cache is not None and not _has_present(call):
        raise DataDependent("without its present ONNX Runtime reads new tokens from stray memory")
    for batch, total in enumerate(int(item) for item in totals):
        past = total - rows
        if past < 0 or past > held:
            raise DataDependent(
                f"`seqlens_k` says {total} tokens for {rows} new ones and a cache of {held}"
            )
        pieces = [slice_axis(fresh, 0, batch, batch + 1)]
        if cache is not None:
            row = slice_axis(cache, 0, batch, batch + 1)
            pieces = [slice_axis(row, 2, 0, past), *pieces, slice_axis(row, 2, total, None)]
        missing = capacity - sum(piece.shape[2] for piece in pieces)
        if missing > 0:
            shape = (1, fresh.shape[1], missing, fresh.shape[3])
            pieces.append(call.silent(shape, fresh.dtype))
        results.append(concat(pieces, 2))
    return concat(results, 0)
