"""If, Loop, Scan and sequences: bodies are entered, step by step."""

from __future__ import annotations

import numpy as np

from causal_attn.verify.influence.registry import Call, DataDependent, rule
from causal_attn.verify.influence.rules.branches import equal_outputs
from causal_attn.verify.influence.rules.combine import select
from causal_attn.verify.influence.rules.movement import (
    concat,
    drop_axes,
    insert_axes,
    reshape,
    slice_axis,
)
from causal_attn.verify.influence.tensor import Sequenced, Tensor, Value

__all__: list[str] = []

_MOST_STEPS = 4096


@rule("If")
def _if(call: Call) -> list[Value]:
    condition = call.tensor(0)
    branches = {True: call.attr("then_branch"), False: call.attr("else_branch")}
    value = condition.value
    if value is not None:
        return call.scope.body(branches[bool(value.reshape(-1)[0])], [])
    both = [call.scope.body(branches[side], []) for side in (True, False)]
    same = equal_outputs(branches[True], branches[False])
    scalar = reshape(condition, ())
    results: list[Value] = []
    for one, other, equal in zip(*both, same, strict=True):
        if equal:
            results.append(one)
            continue
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape:
            raise DataDependent("its condition is data and its branches differ in shape")
        results.append(select(scalar, one, other))
    return results


@rule("Loop")
def _loop(call: Call) -> list[Value]:
    body = call.attr("body")
    state: list[Value] = [_given(item) for item in call.inputs[2:]]
    trips = int(call.values(0).reshape(-1)[0]) if call.has(0) else _MOST_STEPS + 1
    going = bool(call.values(1).reshape(-1)[0]) if call.has(1) else True
    scans: list[list[Tensor]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    step = 0
    while going and step < trips:
        if step == _MOST_STEPS:
            raise DataDependent(f"it takes more than {_MOST_STEPS} steps")
        inputs: list[Value] = [call.constant(step, np.int64), call.constant(True), *state]
        results = call.scope.body(body, inputs)
        again = results[0].value if isinstance(results[0], Tensor) else None
        if again is None:
            raise DataDependent("the number of its steps depends on data")
        going = bool(again.reshape(-1)[0])
        state = results[1 : 1 + len(state)]
        _collect(scans, results[1 + len(state) :])
        step += 1
    if scans and not step:
        raise DataDependent("it takes no step, so its outputs have no shape")
    return [*state, *(concat(steps, 0) for steps in scans)]


@rule("Scan")
def _scan(call: Call) -> list[Value]:
    if call.opset < 9:
        raise DataDependent("Scan below opset 9 has no rule")
    body = call.attr("body")
    count = call.attr("num_scan_inputs")
    held = len(call.inputs) - count
    state: list[Value] = [_given(item) for item in call.inputs[:held]]
    series = [call.tensor(held + at) for at in range(count)]
    axes = call.attr("scan_input_axes") or [0] * count
    turns = call.attr("scan_input_directions") or [0] * count
    outputs = len(body.outputs) - held
    out_axes = call.attr("scan_output_axes") or [0] * outputs
    out_turns = call.attr("scan_output_directions") or [0] * outputs
    steps = series[0].shape[axes[0]]
    scans: list[list[Tensor]] = [[] for _ in range(outputs)]
    for step in range(steps):
        slices = []
        for tensor, axis, turned in zip(series, axes, turns, strict=True):
            at = steps - 1 - step if turned else step
            slices.append(drop_axes(slice_axis(tensor, axis, at, at + 1), [axis]))
        results = call.scope.body(body, [*state, *slices])
        state = results[:held]
        _collect(scans, results[held:])
    if outputs and not steps:
        raise DataDependent("it takes no step, so its outputs have no shape")
    joined = []
    for rows, axis, turned in zip(scans, out_axes, out_turns, strict=True):
        rows = rows[::-1] if turned else rows
        place = axis % rows[0].rank
        moved = [insert_axes(drop_axes(row, [0]), [place]) for row in rows]
        joined.append(concat(moved, place))
    return [*state, *joined]


def _given(item: Value | None) -> Value:
    if item is None:
        raise DataDependent("a value it carries is left out")
    return item


def _collect(scans: list[list[Tensor]], results: list[Value]) -> None:
    for rows, result in zip(scans, results, strict=True):
        if not isinstance(result, Tensor):
            raise DataDependent("it collects sequences")
        rows.append(insert_axes(result, [0]))


@rule("SequenceConstruct")
def _construct(call: Call) -> list[Value]:
    return [Sequenced(tuple(call.tensor(at) for at in range(len(call.inputs))))]


@rule("SequenceEmpty")
def _empty(_: Call) -> list[Value]:
    return [Sequenced(())]


@rule("SequenceInsert")
def _insert(call: Call) -> list[Value]:
    items = list(call.sequence(0).items)
    place = int(call.values(2).reshape(-1)[0]) if call.has(2) else len(items)
    items.insert(place + len(items) if place < 0 else place, call.tensor(1))
    return [Sequenced(tuple(items))]


@rule("SequenceErase")
def _erase(call: Call) -> list[Value]:
    items = list(call.sequence(0).items)
    del items[int(call.values(1).reshape(-1)[0]) if call.has(1) else -1]
    return [Sequenced(tuple(items))]


@rule("SequenceAt")
def _at(call: Call) -> list[Value]:
    return [call.sequence(0).items[int(call.values(1).reshape(-1)[0])]]


@rule("SequenceLength")
def _length(call: Call) -> list[Value]:
    return [call.constant(len(call.sequence(0).items), np.int64)]


@rule("SplitToSequence")
def _split(call: Call) -> list[Value]:
    tensor = call.tensor(0)
    axis = call.attr("axis", 0) % tensor.rank
    dim = tensor.shape[axis]
    keep = bool(call.attr("keepdims", 1)) or call.has(1)
    sizes = [1] * dim
    if call.has(1):
        split = call.values(1)
        size = int(split.reshape(-1)[0])
        sizes = [int(item) for item in split] if split.ndim else [size] * (dim // size)
        if not split.ndim and dim % size:
            sizes.append(dim % size)
    items, start = [], 0
    for size in sizes:
        piece = slice_axis(tensor, axis, start, start + size)
        items.append(piece if keep else drop_axes(piece, [axis]))
        start += size
    return [Sequenced(tuple(items))]


@rule("ConcatFromSequence")
def _concat(call: Call) -> list[Value]:
    items = list(call.sequence(0).items)
    axis = call.attr("axis", 0)
    if call.attr("new_axis", 0):
        rank = items[0].rank + 1
        items = [insert_axes(item, [axis % rank]) for item in items]
    return [concat(items, axis)]
