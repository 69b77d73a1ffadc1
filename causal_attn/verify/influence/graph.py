"""A graph read once from its protobuf: nodes, attributes, subgraphs, stored values.

Weights are not read. Of a stored tensor that is large, a sample is looked at in place, and only a
tensor that could be a mask (it holds zeros, infinities or large numbers) is read whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    numpy_helper,
)

from causal_attn.errors import PackageError
from causal_attn.verify.influence.tensor import SMALLEST_OFFSET, Array, Tensor, compress, no_bits

__all__ = ["Graph", "Node", "Reference", "Stored", "numpy_dtype", "read_graph", "read_nodes"]

_SMALL = 64
"""Float tensors up to this size are always known: epsilons, scales, rotary frequencies."""
_PACKED = {"int2", "uint2", "int4", "uint4", "float4_e2m1fn"}
"""Several elements to a byte: quantized weights, never masks."""
_SAMPLED = 1 << 16
_SAMPLE = 4096


@dataclass(slots=True)
class Node:
    """A node; ``attributes`` may hold `Reference` to an attribute of the function around it."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: NodeProto
    overload: str = ""

    def __str__(self) -> str:
        """Operator and name, for a message."""
        kind = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{kind} {self.name or ', '.join(self.outputs)!r}"


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute whose value is an attribute of the function around the node."""

    name: str


@dataclass(slots=True)
class Stored:
    """A stored tensor: its shape, and its values where they matter to the proof.

    Attributes:
        shape: Concrete sizes.
        dtype: Element type.
        values: Where they could be a mask or an index.
        read: All of them, a view where they lie; ``None`` where they are packed or sparse.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: Array | None
    read: Callable[[], Array] | None = None

    def tensor(self, words: int) -> Tensor:
        """As an abstract tensor with bit sets of `words` words."""
        rank = len(self.shape)
        ones = (1,) * rank
        known = np.full(ones, self.values is not None)
        low = np.zeros(ones, self.dtype) if self.values is None else self.values
        return Tensor(self.shape, self.dtype, no_bits(rank, words), known, low, low)


@dataclass(slots=True)
class Graph:
    """A graph or the body of a function or of a node."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: list[Node]
    stored: dict[str, Stored]
    shapes: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict)


def numpy_dtype(elem_type: int) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type of an ONNX element type.

    Raises:
        PackageError: The model names an element type that this onnx does not know.
    """
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        raise PackageError(
            f"The model's tensors must have element types that onnx {onnx.__version__} knows, "
            f"got number {elem_type}. Install a newer onnx."
        ) from None


def read_graph(proto: GraphProto, base_dir: Path | None) -> Graph:
    """Read a graph.

    Args:
        proto: The graph.
        base_dir: Folder of the model file, where external data lies; ``None`` if unknown.

    Raises:
        PackageError: External data is missing, outside `base_dir`, or truncated.
    """
    stored = {item.name: _stored(item, base_dir) for item in proto.initializer}
    for sparse in proto.sparse_initializer:
        dtype = numpy_dtype(sparse.values.data_type)
        stored[sparse.values.name] = Stored(tuple(sparse.dims), dtype, None)
    shapes: dict[str, tuple[int | str, ...]] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for info in (*proto.input, *proto.value_info, *proto.output):
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type"):
            continue
        if kind.elem_type:
            dtypes[info.name] = numpy_dtype(kind.elem_type)
        if kind.HasField("shape"):
            shapes[info.name] = tuple(_size(dim) for dim in kind.shape.dim)
    return Graph(
        name=proto.name,
        inputs=tuple(item.name for item in proto.input),
        outputs=tuple(item.name for item in proto.output),
        nodes=read_nodes(proto.node, base_dir),
        stored=stored,
        shapes=shapes,
        dtypes=dtypes,
    )


def _size(dim: TensorShapeProto.Dimension) -> int | str:
    """A size, or the name of one; torch writes some sizes as names."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    return int(dim.dim_param) if dim.dim_param.isdigit() else dim.dim_param


def read_nodes(nodes: Iterable[NodeProto], base_dir: Path | None) -> list[Node]:
    """Read nodes with their attributes and subgraphs."""
    return [
        Node(
            op=node.op_type,
            domain="" if node.domain == "ai.onnx" else node.domain,
            name=node.name,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes=_attributes(node.attribute, base_dir),
            proto=node,
            overload=node.overload,
        )
        for node in nodes
    ]


def _attributes(protos: Sequence[AttributeProto], base_dir: Path | None) -> dict[str, Any]:
    """Attribute values by name: subgraphs as `Graph`, tensors as `Stored`."""
    values: dict[str, Any] = {}
    for attribute in protos:
        if attribute.ref_attr_name:
            values[attribute.name] = Reference(attribute.ref_attr_name)
        elif attribute.type == AttributeProto.GRAPH:
            values[attribute.name] = read_graph(attribute.g, base_dir)
        elif attribute.type == AttributeProto.TENSOR:
            values[attribute.name] = _stored(attribute.t, base_dir)
        else:
            value = onnx.helper.get_attribute_value(attribute)
            values[attribute.name] = (
                value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            )
    return values


def _stored(proto: TensorProto, base_dir: Path | None) -> Stored:
    dtype = numpy_dtype(proto.data_type)
    shape = tuple(proto.dims)
    size = math.prod(shape)
    if any(dim < 0 for dim in shape):
        raise PackageError(
            f"Stored tensors must have sizes >= 0, got {list(shape)} for {proto.name!r}. Export "
            "the model again."
        )
    if dtype.kind == "O":
        return Stored(shape, dtype, None)
    floating = _is_floating(dtype)
    external = proto.data_location == TensorProto.EXTERNAL
    if dtype.name in _PACKED and size > _SMALL:
        return Stored(shape, dtype, None)
    if size <= _SAMPLED:
        values = _external(proto, dtype, base_dir) if external else numpy_helper.to_array(proto)
        keep = not floating or size <= _SMALL or _may_mask(values)
        return Stored(shape, dtype, compress(values) if keep else None, lambda: values)

    def read() -> Array:
        if external:
            return _external(proto, dtype, base_dir)
        if proto.HasField("raw_data") and dtype.itemsize * size == len(proto.raw_data):
            return np.frombuffer(proto.raw_data, dtype).reshape(shape)
        return np.asarray(numpy_helper.to_array(proto))

    flat = read().reshape(-1)
    step = max(1, size // _SAMPLE)
    # A step that shares a factor with the row would look at the same columns again and again.
    step += 1 - step % 2
    sample = flat[::step]
    if not (_may_mask(sample) if floating else _may_index(sample)):
        return Stored(shape, dtype, None, read)
    return Stored(shape, dtype, compress(flat.reshape(shape)), read)


def _external(proto: TensorProto, dtype: np.dtype[Any], base_dir: Path | None) -> Array:
    entries = {item.key: item.value for item in proto.external_data}
    location = entries.get("location", "")
    if base_dir is None:
        raise PackageError(
            f"`base_dir` must be the folder of the model, got None while tensor {proto.name!r} is "
            f"stored in {location!r}. Pass the folder that the model file lies in."
        )
    folder = base_dir.resolve()
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder):
        raise PackageError(
            f"External data must lie in the model's folder, got {location!r} for tensor "
            f"{proto.name!r}. Do not open this model, or move its data beside it."
        )
    try:
        offset = int(entries.get("offset", "0"))
        shape = tuple(proto.dims)
        count = math.prod(shape)
        if count == 0:
            return np.zeros(shape, dtype)
        if dtype.itemsize * count > path.stat().st_size - offset or offset < 0:
            raise PackageError(
                f"External data must hold tensor {proto.name!r} whole, got a file {location!r} of "
                f"{path.stat().st_size} bytes. Copy the file again: it is truncated."
            )
        return np.memmap(path, dtype, "r", offset=offset, shape=shape)
    except FileNotFoundError:
        raise PackageError(
            f"External data must be beside the model, got no file {location!r}, which holds "
            f"tensor {proto.name!r}. Copy it into the model's folder."
        ) from None
    except (OSError, ValueError) as error:
        raise PackageError(
            f"External data must be readable, got {error} for tensor {proto.name!r} in "
            f"{location!r}."
        ) from None


def _may_mask(values: Array) -> bool:
    """Whether values could take part in a mask; a weight's cannot, and need not be kept."""
    if values.size == 0:
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude = np.abs(np.asarray(values).astype(np.float32))
    return bool(
        (magnitude == 0).any()
        or not np.isfinite(magnitude).all()
        or (magnitude >= SMALLEST_OFFSET).any()
        or (magnitude == magnitude.reshape(-1)[0]).all()
    )


def _may_index(sample: Array) -> bool:
    """Whether integers could be indices or a mask; quantized weights are bytes of many values."""
    return sample.dtype.itemsize >= 4 or sample.dtype == bool or np.unique(sample).size <= 4


def _is_floating(dtype: np.dtype[Any]) -> bool:
    # ml_dtypes' floats are no subtypes of numpy's.
    return dtype.kind == "f" or "float" in dtype.name
