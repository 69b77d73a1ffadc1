"""Decoders in the layouts that exporters write, node by node: ten families of random weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, helper

from trust.layout import Layout
from trust.pen import Pen

__all__ = ["HANDMADE", "Design", "made"]

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 32, 16, 4, 2, 128
SIZE = WIDTH // HEADS
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, kw_only=True)
class Design:
    """What makes a family what it is.

    Attributes:
        positions: ``learned``, ``rotary``, ``alibi`` or ``none``.
        norm: ``layer`` or ``rms``.
        feed: ``gelu``, ``swiglu`` or ``experts``.
        kv_heads: Heads of keys and values.
        window: Keys that a query sees in layer 0.
        softcap: Of scores, by tanh; 0: none.
        mask: How it is made: ``range`` (comparison of positions, added), ``where`` (selected),
            ``buffer`` (cut out of a stored table, selected) or ``trilu``.
        fill: What hidden scores get, or become.
        cache: It takes a past.
        padded: It takes an attention mask.
        position_input: It takes position ids.
        parallel: Attention and feed forward read the same norm.
    """

    positions: str = "learned"
    norm: str = "layer"
    feed: str = "gelu"
    kv_heads: int = HEADS
    window: int = 0
    softcap: float = 0.0
    mask: str = "range"
    fill: float = LOWEST
    cache: bool = False
    padded: bool = False
    position_input: bool = False
    parallel: bool = False


HANDMADE: dict[str, Design] = {
    "gpt2 without a cache": Design(mask="buffer"),
    "gpt2 with a cache": Design(cache=True, padded=True, position_input=True),
    "gpt2 by table, cached": Design(mask="buffer", cache=True, position_input=True),
    "llama": Design(
        positions="rotary", norm="rms", feed="swiglu", kv_heads=2, cache=True, padded=True,
        position_input=True,
    ),
    "llama without a cache": Design(positions="rotary", norm="rms", feed="swiglu", mask="trilu"),
    "mistral": Design(
        positions="rotary", norm="rms", feed="swiglu", kv_heads=2, window=6, cache=True,
        padded=True, position_input=True,
    ),
    "gemma2": Design(
        positions="rotary", norm="rms", feed="gelu", kv_heads=1, window=5, softcap=5.0,
        mask="where", cache=True, position_input=True,
    ),
    "bloom": Design(positions="alibi", cache=True, mask="where", fill=-np.inf),
    "mixtral": Design(positions="rotary", norm="rms", feed="experts", kv_heads=2, cache=True),
    "phi": Design(positions="rotary", parallel=True, mask="trilu", fill=-1e9),
    "nope": Design(positions="none", mask="range", padded=True, cache=True),
}  # fmt: skip


def made(name: str, seed: int) -> tuple[ModelProto, Layout]:
    """The graph of a family and its layout."""
    design = HANDMADE[name]
    model = _Maker(design, np.random.default_rng([seed, *name.encode()])).model()
    sides: tuple[str, ...] = ("right",) if design.padded else ()
    # Relative positions do not care where a sequence begins.
    if design.padded and (design.position_input or design.positions == "none"):
        sides = ("right", "left")
    cache = {
        f"past_key_values.{layer}.{part}": f"present.{layer}.{part}"
        for layer in range(LAYERS)
        for part in ("key", "value")
    }
    layout = Layout(
        vocabulary=VOCABULARY, mask=design.padded, positions=design.position_input, pads=sides,
        cache=cache if design.cache else {}, heads=design.kv_heads, features=SIZE,
    )  # fmt: skip
    return model, layout


class _Maker:
    def __init__(self, design: Design, rng: np.random.Generator) -> None:
        self.design, self.rng = design, rng
        graph = helper.make_graph([], "decoder", [], [])
        empty = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        empty.ir_version = 9
        self.pen = Pen(empty)

    def model(self) -> ModelProto:
        pen, design = self.pen, self.design
        self._declare()
        tokens = pen.size("input_ids", 1)
        past = pen.size("past_key_values.0.key", 2) if design.cache else pen.const(0, np.int64)
        total = pen("Add", past, tokens)
        x = pen("Gather", self._weight(VOCABULARY, WIDTH), "input_ids")
        if design.position_input:
            places = "position_ids"
        else:
            places = pen("Unsqueeze", self._rows(past, total), pen.ints(0))
        if design.positions == "learned":
            x = pen("Add", x, pen("Gather", self._weight(LONGEST, WIDTH), places))
        rotation = self._rotation(places) if design.positions == "rotary" else None
        for layer in range(LAYERS):
            seen = self._seen(past, total, design.window if layer == 0 else 0)
            normed = self._norm(x)
            mixed = self._attention(normed, layer, seen, rotation, past, total)
            if design.parallel:
                x = pen("Add", pen("Add", x, mixed), self._feed(normed))
            else:
                x = pen("Add", x, mixed)
                x = pen("Add", x, self._feed(self._norm(x)))
        pen("MatMul", self._norm(x), self._weight(WIDTH, VOCABULARY))
        pen.graph.node[-1].output[0] = "logits"
        return pen.model

    def _declare(self) -> None:
        design, graph = self.design, self.pen.graph
        batch, tokens, past = "batch_size", "sequence_length", "past_sequence_length"
        total = f"{past} + {tokens}" if design.cache else tokens
        whole = TensorProto.INT64
        inputs: list[tuple[str, int, list[str | int]]] = []
        inputs.append(("input_ids", whole, [batch, tokens]))
        if design.padded:
            inputs.append(("attention_mask", whole, [batch, total]))
        if design.position_input:
            inputs.append(("position_ids", whole, [batch, tokens]))
        outputs: list[tuple[str, int, list[str | int]]] = []
        outputs.append(("logits", TensorProto.FLOAT, [batch, tokens, VOCABULARY]))
        if design.cache:
            for layer in range(LAYERS):
                for part in ("key", "value"):
                    dims: list[str | int] = [batch, design.kv_heads, past, SIZE]
                    name = f"past_key_values.{layer}.{part}"
                    inputs.append((name, TensorProto.FLOAT, dims))
                    dims = [batch, design.kv_heads, total, SIZE]
                    outputs.append((f"present.{layer}.{part}", TensorProto.FLOAT, dims))
        graph.input.extend(helper.make_tensor_value_info(*each) for each in inputs)
        graph.output.extend(helper.make_tensor_value_info(*each) for each in outputs)

    def _attention(
        self,
        x: str,
        layer: int,
        seen: str,
        rotation: tuple[str, str] | None,
        past: str,
        total: str,
    ) -> str:
        pen, design = self.pen, self.design
        query = self._split(x, HEADS)
        key, value = self._split(x, design.kv_heads), self._split(x, design.kv_heads)
        if rotation is not None:
            query, key = self._rotated(query, rotation), self._rotated(key, rotation)
        if design.cache:
            parts = []
            for part, new in (("key", key), ("value", value)):
                pen("Concat", f"past_key_values.{layer}.{part}", new, axis=2)
                parts.append(f"present.{layer}.{part}")
                pen.graph.node[-1].output[0] = parts[-1]
            key, value = parts
        if design.kv_heads != HEADS:
            key, value = self._repeated(key), self._repeated(value)
        scores = pen("MatMul", query, pen("Transpose", key, perm=[0, 1, 3, 2]))
        scores = pen("Mul", scores, pen.number(SIZE**-0.5))
        if design.softcap:
            cap = pen.number(design.softcap)
            scores = pen("Mul", pen("Tanh", pen("Div", scores, cap)), cap)
        if design.positions == "alibi":
            scores = pen("Add", scores, self._alibi(past, total))
        fill = pen.number(design.fill)
        if design.mask in ("where", "buffer"):
            scores = pen("Where", seen, scores, fill)
        else:
            scores = pen("Add", scores, pen("Where", seen, pen.number(0), fill))
        weights = pen("Softmax", scores, axis=-1)
        mixed = pen("Transpose", pen("MatMul", weights, value), perm=[0, 2, 1, 3])
        mixed = pen("Reshape", mixed, pen.ints(0, 0, WIDTH))
        return pen("MatMul", mixed, self._weight(WIDTH, WIDTH))

    def _seen(self, past: str, total: str, window: int) -> str:
        """``bool [1, 1, tokens, total]``, or of each sequence where padding is hidden."""
        pen, design = self.pen, self.design
        if design.mask == "buffer":
            stored = pen.const(np.tri(LONGEST, dtype=bool)[None, None], np.bool_)
            starts = [pen("Unsqueeze", past, pen.ints(0)), pen("Unsqueeze", total, pen.ints(0))]
            rows = pen("Slice", stored, *starts, pen.ints(2))
            seen = pen("Slice", rows, pen.ints(0), starts[1], pen.ints(3))
        elif design.mask == "trilu":
            sizes = [pen("Unsqueeze", total, pen.ints(0))] * 2
            ones = pen("Expand", pen.number(1), pen("Concat", *sizes, axis=0))
            seen = pen("Cast", pen("Trilu", ones, upper=0), to=TensorProto.BOOL)
            seen = pen("Unsqueeze", seen, pen.ints(0, 1))
        else:
            rows = pen("Unsqueeze", self._rows(past, total), pen.ints(1))
            columns = pen("Unsqueeze", pen.range(total), pen.ints(0))
            seen = pen("LessOrEqual", columns, rows)
            if window:
                first = pen("Sub", rows, pen.const(window, np.int64))
                seen = pen("And", seen, pen("Greater", columns, first))
            seen = pen("Unsqueeze", seen, pen.ints(0, 1))
        if design.padded:
            real = pen("Cast", "attention_mask", to=TensorProto.BOOL)
            seen = pen("And", seen, pen("Unsqueeze", real, pen.ints(1, 2)))
        return seen

    def _rows(self, past: str, total: str) -> str:
        """``int64 [tokens]``"""
        return self.pen("Range", past, total, self.pen.const(1, np.int64))

    def _alibi(self, past: str, total: str) -> str:
        pen = self.pen
        slopes = pen.const(2.0 ** -np.arange(1, HEADS + 1).reshape(1, HEADS, 1, 1), np.float32)
        places = pen("Cast", pen.range(total), to=TensorProto.FLOAT)
        return pen("Mul", slopes, pen("Unsqueeze", places, pen.ints(0, 1, 2)))

    def _rotation(self, places: str) -> tuple[str, str]:
        pen = self.pen
        speeds = pen.const(10.0 ** -np.arange(0, 2, 4 / SIZE)[None, None], np.float32)
        angles = pen("Unsqueeze", pen("Cast", places, to=TensorProto.FLOAT), pen.ints(2))
        angles = pen("Mul", angles, speeds)
        angles = pen("Unsqueeze", pen("Concat", angles, angles, axis=-1), pen.ints(1))
        return pen("Cos", angles), pen("Sin", angles)

    def _rotated(self, x: str, rotation: tuple[str, str]) -> str:
        pen, (cos, sin) = self.pen, rotation
        half, end = SIZE // 2, SIZE
        low = pen("Slice", x, pen.ints(0), pen.ints(half), pen.ints(3))
        high = pen("Slice", x, pen.ints(half), pen.ints(end), pen.ints(3))
        turned = pen("Concat", pen("Neg", high), low, axis=-1)
        return pen("Add", pen("Mul", x, cos), pen("Mul", turned, sin))

    def _repeated(self, x: str) -> str:
        pen, kv_heads = self.pen, self.design.kv_heads
        several = pen("Unsqueeze", x, pen.ints(2))
        several = pen("Expand", several, pen.ints(1, 1, HEADS // kv_heads, 1, 1))
        shape = pen("Shape", x)
        tokens = pen("Slice", shape, pen.ints(2), pen.ints(3), pen.ints(0))
        goal = pen("Concat", pen.ints(0, HEADS), tokens, pen.ints(SIZE), axis=0)
        # 0 copies the axis of the same place, which is the batch.
        return pen("Reshape", several, goal)

    def _split(self, x: str, heads: int) -> str:
        pen = self.pen
        flat = pen("MatMul", x, self._weight(WIDTH, heads * SIZE))
        return pen(
            "Transpose", pen("Reshape", flat, pen.ints(0, 0, heads, SIZE)), perm=[0, 2, 1, 3]
        )

    def _norm(self, x: str) -> str:
        pen = self.pen
        gain = pen.const(1 + 0.1 * self.rng.standard_normal(WIDTH), np.float32)
        if self.design.norm == "layer":
            bias = pen.const(0.1 * self.rng.standard_normal(WIDTH), np.float32)
            return pen("LayerNormalization", x, gain, bias, axis=-1)
        square = pen("ReduceMean", pen("Mul", x, x), pen.ints(-1), keepdims=1)
        root = pen("Sqrt", pen("Add", square, pen.number(1e-6)))
        return pen("Mul", pen("Div", x, root), gain)

    def _feed(self, x: str) -> str:
        pen, wide = self.pen, 2 * WIDTH
        if self.design.feed == "experts":
            return self._experts(x)
        hidden = pen("MatMul", x, self._weight(WIDTH, wide))
        if self.design.feed == "swiglu":
            gate = pen("MatMul", x, self._weight(WIDTH, wide))
            hidden = pen("Mul", pen("Mul", gate, pen("Sigmoid", gate)), hidden)
        else:
            erf = pen("Erf", pen("Div", hidden, pen.number(2**0.5)))
            one = pen("Add", erf, pen.number(1))
            hidden = pen("Mul", pen("Mul", hidden, pen.number(0.5)), one)
        return pen("MatMul", hidden, self._weight(wide, WIDTH))

    def _experts(self, x: str) -> str:
        """Each token goes to two of four experts, all of which are computed."""
        pen, count = self.pen, 4
        logits = pen("MatMul", x, self._weight(WIDTH, count))
        best = pen("TopK", logits, pen.ints(2), outputs=2, axis=-1)
        shares = pen("Softmax", best, axis=-1)
        zeros = pen("Mul", logits, pen.number(0))
        gates = pen("ScatterElements", zeros, f"{best}_1", shares, axis=-1)
        up = pen("MatMul", pen("Unsqueeze", x, pen.ints(1)), self._weight(count, WIDTH, WIDTH))
        out = pen("MatMul", pen("Relu", up), self._weight(count, WIDTH, WIDTH))
        gates = pen("Unsqueeze", pen("Transpose", gates, perm=[0, 2, 1]), pen.ints(3))
        return pen("ReduceSum", pen("Mul", out, gates), pen.ints(1), keepdims=0)

    def _weight(self, *shape: int) -> str:
        # Large enough that attention is far from a mean.
        spread = 2.0 / np.sqrt(shape[-2]) if shape[-1] != WIDTH or len(shape) > 2 else 0.5
        return self.pen.const(spread * self.rng.standard_normal(shape), np.float32)
