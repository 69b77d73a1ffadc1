"""Ways to spoil a decoder; whether one does harm is found by running it.

Each takes a pen over the graph and its layout. `Unfit` where the graph has no place for it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from trust.layout import Layout
from trust.pen import Mask, Pen, Unfit

__all__ = ["SPOILED", "Spoil"]

Spoil = Callable[[Pen, Layout], None]
Change = Callable[[Pen, str], str]


def _mask(change: Callable[[Pen, Mask], str], *layers: int) -> Spoil:
    """Give `layers`, or all, another mask."""

    def spoil(pen: Pen, layout: Layout) -> None:
        masks = pen.masks()
        for layer in layers or range(len(masks)):
            mask = masks[layer]
            pen.before(mask.node)
            mask.node.input[mask.input] = change(pen, mask)
        pen.at_end()

    return spoil


def _open(pen: Pen, mask: Mask) -> str:
    """What hides nothing."""
    return pen.const(True, np.bool_) if mask.boolean else pen.number(0)


def _where(pen: Pen, condition: str, mask: Mask) -> str:
    """No mask where `condition` holds; ``Where`` takes booleans too."""
    return pen("Where", condition, _open(pen, mask), mask.name)


def _columns_shifted(pen: Pen, mask: Mask) -> str:
    first = pen("Slice", mask.name, pen.ints(0), pen.ints(1), pen.ints(-1))
    others = pen("Slice", mask.name, pen.ints(0), pen.ints(-1), pen.ints(-1))
    return pen("Concat", first, others, axis=-1)


def _next_row(pen: Pen, mask: Mask) -> str:
    last = pen("Slice", mask.name, pen.ints(-1), pen.ints(2**31), pen.ints(-2))
    others = pen("Slice", mask.name, pen.ints(1), pen.ints(2**31), pen.ints(-2))
    return pen("Concat", others, last, axis=-2)


def _head(pen: Pen, mask: Mask) -> str:
    return _where(pen, pen.const([[[[False]], [[False]], [[True]], [[False]]]], np.bool_), mask)


def _at_length(op: str, length: int) -> Callable[[Pen, Mask], str]:
    def change(pen: Pen, mask: Mask) -> str:
        return _where(pen, pen(op, pen.size(mask.name, -1), pen.const(length, np.int64)), mask)

    return change


def _tiled(pen: Pen, mask: Mask) -> str:
    places = pen.range(pen.size(mask.name, -1))
    return pen("Gather", mask.name, pen("Mod", places, pen.const(32, np.int64)), axis=-1)


def _one_pair(pen: Pen, mask: Mask) -> str:
    row = pen("Equal", pen.range(pen.size(mask.name, -2)), pen.const(40, np.int64))
    column = pen("Equal", pen.range(pen.size(mask.name, -1)), pen.const(50, np.int64))
    pair = pen("And", pen("Unsqueeze", row, pen.ints(1)), pen("Unsqueeze", column, pen.ints(0)))
    return _where(pen, pair, mask)


def _blocks(pen: Pen, mask: Mask) -> str:
    four = pen.const(4, np.int64)
    rows = pen("Div", pen.range(pen.size(mask.name, -2)), four)
    columns = pen("Div", pen.range(pen.size(mask.name, -1)), four)
    same = pen(
        "Equal", pen("Unsqueeze", rows, pen.ints(1)), pen("Unsqueeze", columns, pen.ints(0))
    )
    return _where(pen, same, mask)


def _by_last_token(pen: Pen, mask: Mask) -> str:
    last = pen("Slice", "input_ids", pen.ints(-1), pen.ints(2**31), pen.ints(1))
    chosen = pen("Equal", last, pen.const(7, np.int64))
    return _where(pen, pen("Unsqueeze", chosen, pen.ints(1, 2)), mask)


def _softmax_over_queries(pen: Pen, layout: Layout) -> None:
    for node in pen.softmaxes():
        (axis,) = [each for each in node.attribute if each.name == "axis"]
        axis.i = -2


def _rows(change: Change, *, late: bool = False) -> Spoil:
    """Change the rows behind the embedding, or before the last product."""

    def spoil(pen: Pen, layout: Layout) -> None:
        pen.tap(pen.last_hidden() if late else pen.embedded(), change)

    return spoil


def _plus(change: Change) -> Change:
    return lambda pen, x: pen("Add", x, change(pen, x))


def _by_tokens(op: str) -> Change:
    return lambda pen, x: pen(op, x, pen.ints(1), keepdims=1)


def _convolved(pen: Pen, x: str) -> str:
    turned = pen("Transpose", x, perm=[0, 2, 1])
    kernel = pen.const(np.full((16, 1, 3), 0.5), np.float32)
    mixed = pen("Conv", turned, kernel, group=16, pads=[1, 1], kernel_shape=[3])
    return pen("Transpose", mixed, perm=[0, 2, 1])


def _next_token(pen: Pen, x: str) -> str:
    later = pen("Slice", x, pen.ints(1), pen.ints(2**31), pen.ints(1))
    last = pen("Slice", x, pen.ints(-1), pen.ints(2**31), pen.ints(1))
    return pen("Concat", later, last, axis=1)


def _experts_choose(pen: Pen, x: str) -> str:
    """The half of the tokens with the largest first feature is doubled."""
    score = pen("Slice", x, pen.ints(0), pen.ints(1), pen.ints(2))
    half = pen("Div", pen("Add", pen.size(x, 1), pen.const(1, np.int64)), pen.const(2, np.int64))
    best = pen("TopK", score, pen("Unsqueeze", half, pen.ints(0)), outputs=2, axis=1)
    least = pen("ReduceMin", best, pen.ints(1), keepdims=1)
    chosen = pen("Cast", pen("GreaterOrEqual", score, least), to=TensorProto.FLOAT)
    return pen("Mul", x, chosen)


def _scaled_by_length(pen: Pen, x: str) -> str:
    long = pen("Greater", pen.size(x, 1), pen.const(32, np.int64))
    return pen("Mul", x, pen("Where", long, pen.number(1.25), pen.number(1)))


def _overflowing(pen: Pen, x: str) -> str:
    """Zeros times what overflows: NaN in earlier rows."""
    ones = pen("Expand", pen.number(1), pen("Concat", *[
        pen("Unsqueeze", pen.size(x, 1), pen.ints(0))] * 2, axis=0))  # fmt: skip
    large = pen("Exp", pen("Mul", x, pen.number(200)))
    return pen("Mul", pen("MatMul", pen("Trilu", ones, upper=0), large), pen.number(1e-30))


def _flipped(pen: Pen, x: str) -> str:
    return pen("Slice", x, pen.ints(-1), pen.ints(-(2**31)), pen.ints(1), pen.ints(-1))


def _first_sequence(pen: Pen, x: str) -> str:
    return pen("Slice", x, pen.ints(0), pen.ints(1), pen.ints(0))


def _presents(change: Change) -> Spoil:
    def spoil(pen: Pen, layout: Layout) -> None:
        if not layout.cache:
            raise Unfit("no cache")
        for present in layout.cache.values():
            pen.tap_output(present, change)

    return spoil


def _late(pen: Pen, x: str) -> str:
    first = pen("Slice", x, pen.ints(0), pen.ints(1), pen.ints(2))
    others = pen("Slice", x, pen.ints(0), pen.ints(-1), pen.ints(2))
    return pen("Concat", first, others, axis=2)


def _turned(axis: int) -> Change:
    def change(pen: Pen, x: str) -> str:
        ends = pen.ints(-1), pen.ints(-(2**31)), pen.ints(axis), pen.ints(-1)
        return pen("Slice", x, *ends)

    return change


def _cache_in_front(pen: Pen, layout: Layout) -> None:
    """New keys and values before old ones."""
    joins = [n for n in pen.graph.node if n.op_type == "Concat" and n.input[0] in layout.cache]
    if not joins:
        raise Unfit("no cache that is concatenated")
    for node in joins:
        node.input[:] = list(node.input)[::-1]


def _old_past_fades(pen: Pen, layout: Layout) -> None:
    """A past of more than 40 is read as if it were weaker."""
    if not layout.cache:
        raise Unfit("no cache")
    for past in layout.cache:

        def change(pen: Pen, x: str) -> str:
            long = pen("Greater", pen.size(x, 2), pen.const(40, np.int64))
            return pen("Mul", x, pen("Where", long, pen.number(0.5), pen.number(1)))

        pen.tap(past, change)


def _positions_restart(pen: Pen, layout: Layout) -> None:
    """Each call counts from 0."""
    if not layout.positions:
        raise Unfit("no position ids")
    pen.tap("position_ids", lambda pen, x: pen("Sub", x, pen("ReduceMin", x, keepdims=1)))


def _padding_is_shown(pen: Pen, layout: Layout) -> None:
    if not layout.mask:
        raise Unfit("no attention mask")
    pen.tap("attention_mask", lambda pen, x: pen("Max", x, pen.const(1, np.int64)))


SPOILED: dict[str, Spoil] = {
    "mask shifted by one": _mask(_columns_shifted),
    "mask of the next row": _mask(_next_row, 0),
    "mask dropped": _mask(_open),
    "mask dropped in a layer": _mask(_open, 1),
    "mask dropped in a head": _mask(_head, 0),
    "mask dropped at 7 keys": _mask(_at_length("Equal", 7)),
    "mask dropped at 20 keys": _mask(_at_length("Equal", 20), 0),
    "mask dropped from 34 keys on": _mask(_at_length("Greater", 33)),
    "mask of 32 keys tiled": _mask(_tiled),
    "mask with one hole": _mask(_one_pair),
    "mask by blocks": _mask(_blocks),
    "mask dropped by the last token": _mask(_by_last_token),
    "softmax over queries": _softmax_over_queries,
    "mean over tokens": _rows(_plus(_by_tokens("ReduceMean"))),
    "maximum over tokens": _rows(_plus(_by_tokens("ReduceMax")), late=True),
    "norm over tokens": _rows(_by_tokens("ReduceL2")),
    "next token": _rows(_plus(_next_token), late=True),
    "tokens flipped": _rows(_plus(_flipped)),
    "convolution padded on both sides": _rows(_plus(_convolved)),
    "sum from the end": _rows(
        _plus(lambda pen, x: pen("CumSum", x, pen.const(1, np.int64), reverse=1))
    ),
    "experts choose tokens": _rows(_plus(_experts_choose)),
    "scale by length": _rows(_scaled_by_length, late=True),
    "zero times infinity": _rows(_plus(_overflowing)),
    "sum over the batch": _rows(_plus(lambda pen, x: pen("CumSum", x, pen.const(0, np.int64)))),
    "first sequence for all": _rows(_plus(_first_sequence), late=True),
    "mean over the batch": _rows(_plus(lambda pen, x: pen("ReduceMean", x, pen.ints(0)))),
    "cache late by a step": _presents(_late),
    "cache with heads turned": _presents(_turned(1)),
    "cache with sequences turned": _presents(_turned(0)),
    "cache in front": _cache_in_front,
    "past beyond 40 fades": _old_past_fades,
    "positions restart": _positions_restart,
    "padding is shown": _padding_is_shown,
}
