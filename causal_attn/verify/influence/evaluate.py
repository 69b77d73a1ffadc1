"""Evaluate a graph on abstract tensors, node by node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from causal_attn.errors import PackageError
from causal_attn.verify.influence.bounds import EMPTY, UNBOUNDED, Extent, Step, extents_of
from causal_attn.verify.influence.bounds.extent import hull, known_values
from causal_attn.verify.influence.folding import filled_proto, folded
from causal_attn.verify.influence.graph import Graph, Node, Reference, Stored
from causal_attn.verify.influence.order import names_read
from causal_attn.verify.influence.origin import Origin, derive, joined, of_value, partial
from causal_attn.verify.influence.program import Function, Program
from causal_attn.verify.influence.registry import FOLDED, RULES, Call, DataDependent, Mode
from causal_attn.verify.influence.reordered import move, ordered_by
from causal_attn.verify.influence.same import same_elements
from causal_attn.verify.influence.tensor import (
    SMALLEST_OFFSET,
    Array,
    Reordered,
    Sequenced,
    Tensor,
    Unshaped,
    Value,
    broadcast_words,
    join_words,
    unknown,
)

__all__ = ["Frame"]

_ORDERED = {"ArgMax", "ArgMin", "TopK"}


class Frame:
    """The values of one graph while it is evaluated; a body's frame sees the one around it."""

    # Eight parameters: a graph, a function and a body each give others of them.
    def __init__(
        self,
        program: Program,
        mode: Mode,
        *,
        values: Mapping[str, Value],
        dims: Mapping[str, int],
        outer: Frame | None = None,
        opsets: Mapping[str, int] | None = None,
        attributes: Mapping[str, Any] | None = None,
        absent: Collection[str] = (),
    ) -> None:
        """Make the frame of a graph.

        Args:
            program: The model.
            mode: How masks are read.
            values: Values by name, to begin with.
            dims: Sizes of the model's named dims, for operators without a rule.
            outer: The frame around a body.
            opsets: Versions by domain; those of the model unless it is a function's body.
            attributes: Attributes of the node that calls the function.
            absent: Inputs of the function that the node leaves out.
        """
        self.program = program
        self.mode = mode
        self.values: dict[str, Value] = dict(values)
        self.dims = dims
        self.outer = outer
        self.opsets = opsets if opsets is not None else program.opsets
        self.attributes = attributes or {}
        self.absent = frozenset(absent)
        self.origins: dict[str, Origin] = {}
        self.writers: dict[str, Node] = {}
        self.extents: dict[str, Extent] = {}
        self._stored: Mapping[str, Stored] = {}
        self._inner_extents: list[list[Extent]] = []
        self._around = Origin((0,) * mode.words)
        self._entered: list[Origin] | None = None
        self._node: Node | None = None

    def lookup(self, name: str) -> Value:
        """The value of a name, here or around.

        Raises:
            PackageError: No node writes it.
        """
        frame: Frame | None = self
        while frame is not None:
            if name in frame.values:
                return frame.values[name]
            frame = frame.outer
        raise PackageError(f"Every name must be written before it is read, got {name!r}.")

    def origin(self, name: str) -> Origin:
        """Where the value of a name comes from; nothing for an input that is left out."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.origins:
                return frame.origins[name]
            if name in frame.values:
                return joined([of_value(frame.values[name]), frame._around], self.mode.words)
            frame = frame.outer
        return Origin((0,) * self.mode.words)

    def extent(self, name: str) -> Extent:
        """How large the value of a name is; an input is as large as it is fed."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.extents:
                return frame.extents[name]
            if name in frame.values:
                value, stored = frame.values[name], frame._stored.get(name)
                if stored is not None:
                    return self._stored_extent(stored, value)
                if isinstance(value, Tensor) and value.known.all():
                    return known_values(value) or EMPTY
                return UNBOUNDED
            frame = frame.outer
        return UNBOUNDED

    def _stored_extent(self, stored: Stored, value: Value) -> Extent:
        extent = self.program.extent(stored)
        if extent.size >= SMALLEST_OFFSET and isinstance(value, Tensor) and value.known.all():
            # Large known values are constants, and an extent is about the data.
            return known_values(value) or EMPTY
        return extent

    def given(self, name: str) -> Value | None:
        """The value of an input of a node; ``None`` where it, or the function's, is left out."""
        frame: Frame | None = self
        while frame is not None and name not in frame.values:
            if name in frame.absent:
                return None
            frame = frame.outer
        return self.lookup(name) if name else None

    def run(self, graph: Graph) -> list[Value]:
        """Evaluate every node; the values of the outputs."""
        self._stored = graph.stored if self.mode.measured else {}
        for name, stored in graph.stored.items():
            if name not in self.values:
                self.values[name] = stored.tensor(self.mode.words)
                self.origins[name] = of_value(self.values[name])
        for node in graph.nodes:
            inputs = [self.given(name) for name in node.inputs]
            outputs = self.evaluate(node, inputs, graph)
            origins = self._origins_of(node, inputs, outputs)
            if self.mode.measured:
                measured = self._extents_of(node, inputs, outputs)
                self.extents.update(zip(node.outputs, measured, strict=False))
            for name, value, origin in zip(node.outputs, outputs, origins, strict=False):
                if name:
                    self.writers[name] = node
                    self.values[name] = value
                    self.origins[name] = origin
        return [self.lookup(name) for name in graph.outputs]

    def _origins_of(
        self, node: Node, inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> list[Origin]:
        if self._entered is not None:
            return self._entered
        words = self.mode.words
        bodies = [item for item in node.attributes.values() if isinstance(item, Graph)]
        if bodies:
            return [
                joined([self._surroundings(node, bodies), of_value(value)], words)
                for value in outputs
            ]
        origins = [self.origin(name) for name in node.inputs]
        return [derive(node, inputs, origins, value, words) for value in outputs]

    def _extents_of(
        self, node: Node, inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> list[Extent]:
        if any(isinstance(value, Reordered) for value in (*inputs, *outputs)):
            return [UNBOUNDED] * len(outputs)
        stored = node.attributes.get("value")
        if node.op == "Constant" and isinstance(stored, Stored):
            return [self._stored_extent(stored, outputs[0])]
        if self._inner_extents:
            if node.op in ("Loop", "Scan") and not node.domain:
                # Values carried from step to step may grow.
                return [UNBOUNDED] * len(outputs)
            ways = zip(*self._inner_extents, strict=True)
            return [way[0] if len(way) == 1 else hull(way) for way in ways]
        return extents_of(
            Step(
                node,
                self.opsets.get(node.domain, 1),
                self._resolved(node),
                inputs,
                [self.extent(name) if name else UNBOUNDED for name in node.inputs],
                outputs,
                self.writers,
                self.lookup,
            )
        )

    def _surroundings(self, node: Node, bodies: Sequence[Graph]) -> Origin:
        """Origin of everything in the bodies of a node, whichever way they go."""
        read = joined([self.origin(name) for name in names_read(node)], self.mode.words)
        return Origin(read.reach, read.wild or any(partial(body) for body in bodies))

    def body(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        """Evaluate a subgraph of a node in this frame."""
        frame = self._inner(dict(zip(graph.inputs, inputs, strict=False)))
        if self._node is not None:
            frame._around = self._surroundings(self._node, [graph])
        values = frame.run(graph)
        if self.mode.measured:
            self._inner_extents.append([frame.extent(name) for name in graph.outputs])
        return values

    def same(self, one: str, other: str) -> Array | None:
        """Where two tensors of this graph hold one and the same element; see `same_elements`."""
        return same_elements(one, other, self.writers, self.lookup, self.evaluate)

    def overridden(self, values: Mapping[str, Value]) -> Frame:
        """This frame with other values under some names."""
        frame = self._inner(values)
        frame.origins = {name: self.origin(name) for name in values}
        frame.writers = self.writers
        return frame

    def _inner(self, values: Mapping[str, Value]) -> Frame:
        return Frame(
            self.program, self.mode, values=values, dims=self.dims, outer=self,
            opsets=self.opsets, attributes=self.attributes,
        )  # fmt: skip

    def evaluate(
        self, node: Node, inputs: Sequence[Value | None], graph: Graph | None = None
    ) -> Sequence[Value]:
        """The outputs of a node; joins everything and says so where no rule applies."""
        attributes = self._resolved(node)
        opset = self.opsets.get(node.domain, 1)
        self._entered, self._node = None, node
        self._inner_extents = []
        origins = [self.origin(name) for name in node.inputs]
        extents = [self.extent(name) for name in node.inputs] if self.mode.measured else []
        call = Call(node, list(inputs), opset, self, attributes, origins, extents)
        if any(isinstance(value, Unshaped) for value in inputs):
            return self._joined(call, None, graph)
        try:
            function = self.program.functions.get((node.domain, node.op, node.overload))
            if function is not None:
                if (node.domain, node.op) in RULES or onnx.defs.has(node.op, node.domain):
                    # A runtime that has a kernel for the operator does not enter the function.
                    raise DataDependent("the model has its own function of this name")
                return self._call(function, node, inputs, attributes)
            if node.overload:
                raise DataDependent(f"the model has no overload {node.overload!r} of it")
            return self._ruled(call, graph)
        except DataDependent as reason:
            return self._joined(call, f"{node}: {reason}", graph)
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            # A node whose inputs do not fit together: nothing can be said of it.
            return self._joined(call, f"{node}: its inputs do not fit ({error})", graph)

    def _ruled(self, call: Call, graph: Graph | None) -> Sequence[Value]:
        node = call.node
        if any(isinstance(item, Reordered) for item in call.inputs):
            return self._in_order_of_data(call, graph)
        if (by_data := ordered_by(call)) is not None:
            return by_data
        key = (node.domain, node.op)
        rule = RULES.get(key)
        made = rule is None and any(any(origin.reach) for origin in call.origins)
        if (rule is None or key in FOLDED) and not made:
            computed = folded(call)
            if computed is not None:
                return [self._ordered(call, value) for value in computed]
        if rule is not None:
            return [self._ordered(call, value) for value in rule(call)]
        if node.domain == "" and not any(isinstance(v, Sequenced) for v in call.inputs):
            tensors = [value if isinstance(value, Tensor) else None for value in call.inputs]
            proto = filled_proto(call)
            definition = self.program.definition(proto, call.opset, tensors)
            if definition is not None:
                return self._call(definition, node, call.inputs, call.attributes)
        return self._joined(call, f"{node}: no rule for this operator", graph)

    def _in_order_of_data(self, call: Call, graph: Graph | None) -> Sequence[Value]:
        """Outputs of a node that reads rows which data moved; see `Reordered`."""
        moved = move(call, lambda unmoved: self._ruled(unmoved, graph))
        if moved is not None:
            return moved
        loose: list[Value | None] = [
            item.loose() if isinstance(item, Reordered) else item for item in call.inputs
        ]
        call = replace(call, inputs=loose)
        if any(isinstance(item, Unshaped) for item in loose):
            return self._joined(call, f"{call.node}: rows that data picks", graph)
        return self._ruled(call, graph)

    def _ordered(self, call: Call, value: Value) -> Value:
        """What an operator that compares elements says where one may be NaN under its zero."""
        if call.node.op not in _ORDERED or not isinstance(value, Tensor):
            return value
        if not call.origins[0].wild:
            return value
        where = np.asarray(call.tensor(0).known.any())
        return call.doubted(value, where, 0, "it compares a number that may be NaN")

    def _call(
        self,
        function: Function,
        node: Node,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> list[Value]:
        given = {
            name: value
            for name, value in zip(function.body.inputs, inputs, strict=False)
            if value is not None
        }
        defaults = function.defaults.attributes if function.defaults is not None else {}
        frame = Frame(
            self.program, self.mode, values=given, dims={},
            opsets=function.opsets, attributes={**defaults, **attributes},
            absent=[name for name in function.body.inputs if name not in given],
        )  # fmt: skip
        frame.origins = {
            name: self.origin(source)
            for name, source in zip(function.body.inputs, node.inputs, strict=False)
        }
        if self.mode.measured:
            frame.extents = {
                name: self.extent(source)
                for name, source in zip(function.body.inputs, node.inputs, strict=False)
            }
        wanted = len(node.outputs)
        body = function.body
        if wanted < len(body.outputs):
            body = Graph(body.name, body.inputs, body.outputs[:wanted], body.nodes, body.stored)
        results = frame.run(body)
        self._entered = [frame.origin(name) for name in body.outputs]
        if self.mode.measured:
            self._inner_extents = [[frame.extent(name) for name in body.outputs]]
        return results

    def _resolved(self, node: Node) -> dict[str, Any]:
        resolved = {}
        for name, value in node.attributes.items():
            if isinstance(value, Reference):
                if value.name in self.attributes:
                    resolved[name] = self.attributes[value.name]
            else:
                resolved[name] = value
        return resolved

    def _joined(self, call: Call, reason: str | None, graph: Graph | None) -> list[Value]:
        """Outputs that everything in the inputs reaches, marked with the cause of doubt."""
        words = [0] * self.mode.words
        for name in names_read(call.node):
            value = self.lookup_or(name, call)
            for index, word in enumerate(join_words(value) if value is not None else ()):
                words[index] |= word
            # An operator nobody knows may see what a known zero was made of.
            for index, word in enumerate(self.origin(name).reach):
                words[index] |= word
        if self.mode.optimistic:
            # Also behind such a node: without shapes, what joins there is not known to join.
            words = [word & mask for word, mask in zip(words, self._doubt_words(), strict=True)]
        if reason is not None:
            bit = self.mode.doubt(reason)
            words[bit // 64] |= 1 << (bit % 64)
        return [self._shaped(name, words, call, graph) for name in call.node.outputs]

    def lookup_or(self, name: str, call: Call) -> Value | None:
        """The value given to the call under `name`, else the one in the frame."""
        for given, value in zip(call.node.inputs, call.inputs, strict=False):
            if given == name and value is not None:
                return value
        return self.given(name)

    def _doubt_words(self) -> list[int]:
        masks = [0] * self.mode.words
        for bit in range(self.mode.positions, 64 * self.mode.words):
            masks[bit // 64] |= 1 << (bit % 64)
        return masks

    def _shaped(self, name: str, words: list[int], call: Call, graph: Graph | None) -> Value:
        declared = graph.shapes.get(name) if graph is not None else None
        if declared is None or graph is None:
            return Unshaped(tuple(words))
        shape = [self.dims.get(dim, -1) if isinstance(dim, str) else dim for dim in declared]
        if any(dim < 0 for dim in shape):
            return Unshaped(tuple(words))
        tensors = [value for value in call.inputs if isinstance(value, Tensor)]
        fallback = tensors[0].dtype if tensors else np.dtype(np.float32)
        dtype = graph.dtypes.get(name, fallback)
        return unknown(shape, dtype, broadcast_words(tuple(words), len(shape)))
