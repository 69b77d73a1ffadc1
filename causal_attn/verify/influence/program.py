"""A model read for the proof: its graph, its functions, the versions of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto

from causal_attn.errors import PackageError
from causal_attn.verify.influence.bounds import Extent, of_stored
from causal_attn.verify.influence.graph import Graph, Node, Stored, read_graph, read_nodes
from causal_attn.verify.influence.order import in_order
from causal_attn.verify.influence.tensor import Tensor

__all__ = ["Function", "Program", "read_program"]


@dataclass(slots=True)
class Function:
    """A function of the model, or the definition of an operator by others."""

    body: Graph
    opsets: dict[str, int]
    defaults: Node | None = None


@dataclass(slots=True)
class Program:
    """Everything about a model that is the same at every length."""

    graph: Graph
    opsets: dict[str, int]
    functions: dict[tuple[str, str, str], Function]
    extents: dict[int, Extent] = field(default_factory=dict)
    definitions: dict[tuple[str, bytes, tuple[bytes, ...]], Function | None] = field(
        default_factory=dict
    )

    def extent(self, stored: Stored) -> Extent:
        """How large the values of a stored tensor are; it is read once."""
        if id(stored) not in self.extents:
            self.extents[id(stored)] = of_stored(stored)
        return self.extents[id(stored)]

    def definition(
        self, proto: NodeProto, opset: int, inputs: Sequence[Tensor | None]
    ) -> Function | None:
        """How the ONNX standard defines an operator by others, if it does."""
        types = tuple(_type(tensor) for tensor in inputs)
        key = (f"{proto.op_type}@{opset}", proto.SerializeToString(), types)
        if key not in self.definitions:
            self.definitions[key] = _definition(proto, opset, types)
        return self.definitions[key]


def read_program(model: ModelProto, base_dir: Path | None) -> Program:
    """Read a model.

    Raises:
        PackageError: It has no graph, it is damaged, its opset is newer than the installed onnx,
            its nodes have no order, or its external data is missing.
    """
    try:
        return _read(model, base_dir)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # What protobuf and onnx raise at bytes that are no tensor, no text, no attribute.
        raise PackageError(
            f"The model must be whole, got one that cannot be read ({error}). Export it again, or "
            "copy the file again."
        ) from None


def _read(model: ModelProto, base_dir: Path | None) -> Program:
    if not model.HasField("graph") or not model.graph.output:
        raise PackageError("The model must have a graph with outputs, got one without.")
    newest, asked = onnx.defs.onnx_opset_version(), _opsets(model.opset_import).get("", 1)
    if asked > newest:
        raise PackageError(
            f"The model's opset must be at most {newest}, the newest that onnx {onnx.__version__} "
            f"knows, got {asked}. Install a newer onnx: what its operators mean may have changed."
        )
    graph = read_graph(model.graph, base_dir)
    graph.nodes = in_order(graph.nodes)
    _check_order(graph)
    functions = {
        (_domain(proto.domain), proto.name, proto.overload): _function(proto, base_dir)
        for proto in model.functions
    }
    return Program(graph, _opsets(model.opset_import), functions)


def _opsets(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(item.domain): item.version for item in imports}


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _function(proto: FunctionProto, base_dir: Path | None) -> Function:
    body = Graph(
        name=proto.name,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        nodes=in_order(read_nodes(proto.node, base_dir)),
        stored={},
    )
    defaults = onnx.helper.make_node(proto.name, [], [])
    defaults.attribute.extend(proto.attribute_proto)
    return Function(body, _opsets(proto.opset_import), read_nodes([defaults], base_dir)[0])


def _check_order(graph: Graph) -> None:
    ready = {"", *graph.inputs, *graph.stored}
    for node in graph.nodes:
        if missing := [name for name in node.inputs if name not in ready]:
            raise PackageError(
                f"What a node reads must be written by another, got {missing[0]!r}, which {node} "
                "reads: no node writes it, or it is on a cycle. Repair the graph."
            )
        ready.update(node.outputs)
    if absent := [name for name in graph.outputs if name not in ready]:
        raise PackageError(f"Every output must be written by a node, got none for {absent}.")


def _type(tensor: Tensor | None) -> bytes:
    if tensor is None:
        return bytes(TypeProto().SerializeToString())
    number = onnx.helper.np_dtype_to_tensor_dtype(tensor.dtype)
    made = onnx.helper.make_tensor_type_proto(number, tensor.shape)
    return bytes(made.SerializeToString())


def _definition(node: NodeProto, opset: int, types: tuple[bytes, ...]) -> Function | None:
    try:
        # Typed as Any: the stubs of onnx 1.23 lack the methods that give function bodies.
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    proto = FunctionProto()
    if versions := [at for at in schema.function_opset_versions if at <= opset]:
        proto.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    elif versions := [
        at for at in schema.context_dependent_function_opset_versions if at <= opset
    ]:
        proto.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), list(types)
            )
        )
    if not proto.node:
        return None
    function = _function(proto, None)
    defaults = onnx.helper.make_node(node.op_type, [], [])
    defaults.attribute.extend(
        item.default_value for item in schema.attributes.values() if item.default_value.name
    )
    function.defaults = read_nodes([defaults], None)[0]
    return function
