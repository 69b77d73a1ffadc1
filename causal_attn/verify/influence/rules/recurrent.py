"""Recurrent layers: forward in time a step sees the past, backward it sees the future."""

from __future__ import annotations

import numpy as np

from causal_attn.verify.influence.registry import Call, rule
from causal_attn.verify.influence.rules.movement import concat, insert_axes, slice_axis, transpose
from causal_attn.verify.influence.tensor import Tensor, expand, reduce_bits, unknown

__all__: list[str] = []


@rule("LSTM", "GRU", "RNN")
def _recurrent(call: Call) -> list[Tensor]:
    data = call.tensor(0)
    batch_first = call.attr("layout", 0) == 1
    if batch_first:
        data = transpose(data, (1, 0, 2))
    time, batch, _ = data.shape
    hidden = call.attr("hidden_size") or call.tensor(2).shape[-1]
    direction = call.attr("direction", "forward")
    turns = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    outputs, lasts = [], []
    for place, backwards in enumerate(turns):
        bits = reduce_bits(data, [2])
        lengths = call.optional(4)
        if lengths is not None:
            rows = [plane.reshape(1, -1, 1) for plane in lengths.bits]
            bits = [a | b for a, b in zip(bits, rows, strict=True)]
        for at in (5, 6):
            state = call.optional(at) if at == 5 or call.node.op == "LSTM" else None
            if state is not None:
                state = transpose(state, (1, 0, 2)) if batch_first else state
                own = slice_axis(state, 0, place, place + 1)
                bits = [a | b for a, b in zip(bits, reduce_bits(own, [2]), strict=True)]
        bits = [expand(plane, data.shape, [0]) for plane in bits]
        turn = slice(None, None, -1) if backwards else slice(None)
        bits = [np.bitwise_or.accumulate(plane[turn], axis=0)[turn] for plane in bits]
        series = unknown((time, batch, hidden), data.dtype, bits)
        outputs.append(insert_axes(series, [1]))
        # Rows shorter than the series end earlier: what their end sees is within the last step.
        lasts.append(slice_axis(series, 0, *((0, 1) if backwards else (time - 1, time))))
    weights = [1, 2, 3, 7] if call.node.op == "LSTM" else [1, 2, 3]
    y = call.reached_by(concat(outputs, 1), *weights)
    last = call.reached_by(concat(lasts, 0), *weights)
    if batch_first:
        y, last = transpose(y, (2, 0, 1, 3)), transpose(last, (1, 0, 2))
    return [y, last, last]
