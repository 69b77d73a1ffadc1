"""A contract must be that of the graph, and of what is installed: feeds are checked against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from causal_attn.errors import EngineError, InputError, PackageError
from causal_attn.machine.release import release
from causal_attn.package.contract import Contract
from causal_attn.runtime.ort import InferenceSession, installed_version

if TYPE_CHECKING:
    from causal_attn.package import Variant

__all__ = ["require_agreement", "require_runnable"]

_ORT_TYPES = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}


def require_runnable(contract: Contract) -> None:
    """Refuse what cannot be called from here, before anything is loaded.

    Raises:
        InputError: A tensor has a dtype that numpy does not have.
        EngineError: The model needs a newer ONNX Runtime.
    """
    for tensor in (*contract.inputs, *contract.outputs):
        if tensor.dtype == "bfloat16":
            raise InputError(
                "`path` must be a model with inputs and outputs that numpy has a dtype for, got "
                f"bfloat16 for `{tensor.name}`, which ONNX Runtime does not take from Python. "
                "Export it with dtype float16 or float32."
            )
    installed, oldest = installed_version(), contract.onnxruntime
    if release(installed) < release(oldest):
        raise EngineError(
            f"`path` must be a model that ONNX Runtime {installed} runs, got one that needs "
            f"{oldest} or newer: older ones may end the process. Upgrade it, or export the model "
            "in a form that runs here."
        )


def require_agreement(variant: Variant, engine: InferenceSession) -> None:
    """Refuse a contract that is not the graph's.

    Raises:
        PackageError: Names, dtypes or dims differ.
    """
    for what, tensors, nodes in (
        ("inputs", variant.contract.inputs, engine.get_inputs()),
        ("outputs", variant.contract.outputs, engine.get_outputs()),
    ):
        promised = [(tensor.name, tensor.dtype) for tensor in tensors]
        graph = [(node.name, _dtype(node)) for node in nodes]
        if promised != graph:
            raise PackageError(
                f"The contract's {what} must be those of the graph, {graph}, got {promised}: "
                f"{variant.model}."
            )
        for tensor, node in zip(tensors, nodes, strict=True):
            if not _dims_agree(tensor.dims, node.shape):
                raise PackageError(
                    f"The contract's dims of `{tensor.name}` must be those of the graph, "
                    f"{node.shape}, got {list(tensor.dims)}: {variant.model}."
                )


def _dims_agree(promised: tuple[str | int, ...], graph: list[str | int | None] | None) -> bool:
    # ONNX Runtime gives [] both for a scalar and for a tensor whose shape is not declared.
    if not graph:
        return True
    return len(promised) == len(graph) and all(
        promise == dim or not (isinstance(promise, int) and isinstance(dim, int))
        for promise, dim in zip(promised, graph, strict=True)
    )


def _dtype(node: Any) -> str:
    kind: str = node.type
    return _ORT_TYPES.get(kind, kind.removeprefix("tensor(").removesuffix(")"))
