"""Read a graph from its file, or say why it cannot be."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from causal_attn.errors import PackageError
from causal_attn.machine.memory import machine_bytes
from causal_attn.package.digest import external_files
from causal_attn.verify.node_order import sort_model

__all__ = ["made_up_operators", "read_model"]


def read_model(path: Path) -> onnx.ModelProto:
    """The graph at `path` with its nodes in order, its external data left where it is.

    Raises:
        PackageError: It is no ONNX model, is cut short, lacks its external data, is newer than
            the installed onnx, or is larger than the memory there is.
    """
    size = path.stat().st_size if path.is_file() else 0
    files = external_files(path)
    needed = size + sum(file.stat().st_size for file in files.values())
    if needed > (there := machine_bytes()):
        raise PackageError(
            f"The model must fit into memory, got {needed / 2**30:.1f} GiB for "
            f"{there / 2**30:.1f} GiB: {path}. Verify it on a larger machine."
        )
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise PackageError(f"`path` must be an ONNX model, got {path}: {error}.") from None
    if not model.graph.output:
        raise PackageError(f"`path` must be an ONNX model with outputs, got none in {path}.")
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise PackageError(
                f"`path` must use an opset up to {newest}, got {opset.version} in {path}. A newer "
                "onnx may know it: pip install --upgrade onnx"
            )
    sort_model(model)
    return model


def made_up_operators(model: onnx.ModelProto) -> list[str]:
    """Operators of the ONNX domain that neither onnx nor the model itself defines."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    own = {function.name for function in model.functions}
    return sorted(
        {
            node.op_type
            for node in model.graph.node
            if node.domain in ("", "ai.onnx")
            and node.op_type not in own
            and not onnx.defs.has(node.op_type, opset, "")
        }
    )
