"""Surgery on a graph: new nodes, and the places where a decoder can be spoiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

__all__ = ["Mask", "Pen", "Unfit"]


class Unfit(LookupError):
    """A graph has no place for what should be done to it."""


@dataclass(frozen=True)
class Mask:
    """Where a layer's scores meet its mask: an input of an ``Add``, or of a ``Where``."""

    node: NodeProto
    input: int

    @property
    def name(self) -> str:
        return str(self.node.input[self.input])

    @property
    def boolean(self) -> bool:
        return bool(self.node.op_type == "Where")


class Pen:
    """Writes nodes at the end of a graph, or before a node of it."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.graph: GraphProto = model.graph
        self._at: int | None = None
        self._count = 0

    def before(self, node: NodeProto) -> Pen:
        """Write what follows before `node`."""
        self._at = next(at for at, other in enumerate(self.graph.node) if other is node)
        return self

    def after(self, name: str) -> Pen:
        """Write what follows behind the node that computes `name`, or before all of an input."""
        self._at = 1 + max(
            (at for at, node in enumerate(self.graph.node) if name in node.output), default=-1
        )
        return self

    def at_end(self) -> Pen:
        self._at = None
        return self

    def const(self, value: Any, dtype: Any) -> str:
        name = self._new("const")
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def number(self, value: float) -> str:
        return self.const(value, np.float32)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = self._new(op.lower())
        names = [name, *(f"{name}_{at}" for at in range(1, outputs))]
        node = helper.make_node(op, list(inputs), names, name=name, **attributes)
        if self._at is None:
            self.graph.node.append(node)
        else:
            self.graph.node.insert(self._at, node)
            self._at += 1
        return name

    def size(self, name: str, axis: int) -> str:
        """``int64 []``"""
        return self("Gather", self("Shape", name), self.const(axis, np.int64), axis=0)

    def range(self, size: str) -> str:
        """``int64 [size]``"""
        return self("Range", self.const(0, np.int64), size, self.const(1, np.int64))

    def tap(self, name: str, change: Callable[[Pen, str], str]) -> None:
        """Put `change` behind the tensor `name`, an input or what a node computes."""
        readers = [node for node in self.graph.node if name in node.input]
        self.after(name)
        replaced = change(self, name)
        for node in readers:
            for at, read in enumerate(node.input):
                if read == name:
                    node.input[at] = replaced
        self.at_end()

    def tap_output(self, name: str, change: Callable[[Pen, str], str]) -> None:
        """Put `change` before the output `name`; nodes of the graph go on to read the old one."""
        inner = self._new("inner")
        for node in self.graph.node:
            for names in (node.input, node.output):
                for at, read in enumerate(names):
                    if read == name:
                        names[at] = inner
        self.at_end()
        self("Identity", change(self, inner))
        self.graph.node[-1].output[0] = name

    def writer(self, name: str) -> NodeProto | None:
        return next((node for node in self.graph.node if name in node.output), None)

    def ancestors(self, name: str) -> Iterator[NodeProto]:
        writers = {output: node for node in self.graph.node for output in node.output}
        seen: set[str] = set()
        pending = [name]
        while pending:
            node = writers.get(pending.pop())
            if node is None or node.output[0] in seen:
                continue
            seen.add(node.output[0])
            yield node
            pending += list(node.input)

    def masks(self) -> list[Mask]:
        """The mask of each layer whose softmax is a node of its own."""
        found = []
        for node in list(self.graph.node):
            if node.op_type == "Softmax" and self._weighs_values(node):
                mask = self._mask(node)
                if mask is None:
                    raise Unfit("scores without a mask before them")
                found.append(mask)
        if not found:
            raise Unfit("no softmax over scores")
        return found

    def softmaxes(self) -> list[NodeProto]:
        """Those over the keys."""
        found = [n for n in self.graph.node if n.op_type == "Softmax" and self._weighs_values(n)]
        if not found:
            raise Unfit("no softmax over scores")
        return found

    def embedded(self) -> str:
        """The first ``[batch, tokens, width]``: the rows that the ids pick."""
        for node in self.graph.node:
            if node.op_type == "Gather" and "input_ids" in node.input:
                return str(node.output[0])
        raise Unfit("no table of embeddings")

    def last_hidden(self) -> str:
        """What the last product takes: ``[batch, tokens, width]``."""
        for node in self.ancestors("logits"):
            if node.op_type == "MatMul":
                return str(node.input[0])
        raise Unfit("no last product")

    def _weighs_values(self, softmax: NodeProto) -> bool:
        name, passed = softmax.output[0], ("Cast", "Identity", "Slice", "Where", "Dropout")
        for _ in range(6):
            readers = [node for node in self.graph.node if name in node.input]
            if any(node.op_type == "MatMul" and node.input[0] == name for node in readers):
                return True
            onward = [node for node in readers if node.op_type in passed]
            if not onward:
                return False
            name = onward[0].output[0]
        return False

    def _mask(self, softmax: NodeProto) -> Mask | None:
        name = softmax.input[0]
        for _ in range(6):
            node = self.writer(name)
            if node is None:
                return None
            if node.op_type == "Add":
                for at in (1, 0):
                    if not any(n.op_type == "MatMul" for n in self.ancestors(node.input[at])):
                        return Mask(node, at)
                return None
            if node.op_type == "Where":
                return Mask(node, 0)
            if node.op_type not in ("Cast", "Concat", "Reshape", "Identity", "Sub", "Cast"):
                return None
            name = node.input[0]
        return None

    def _new(self, stem: str) -> str:
        self._count += 1
        return f"pen_{len(self.graph.initializer)}_{len(self.graph.node)}_{self._count}_{stem}"
