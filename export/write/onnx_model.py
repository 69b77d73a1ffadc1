"""From an ExportedProgram to a clean ONNX model: our names, nothing of the machine."""

from __future__ import annotations

import re
import traceback
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch.export import ExportedProgram
from torch.fx.node import map_arg

from causal_attn.attention.call import AttendCall
from causal_attn.attention.operator import ATTEND
from causal_attn.errors import CaptureError
from causal_attn.export.capture.captured import Captured
from causal_attn.export.capture.sdpa import SDPA, lower_sdpa
from causal_attn.export.capture.trace import refuse_narrowed_dims
from causal_attn.export.forms.demand import Demand
from causal_attn.export.forms.form import Form
from causal_attn.export.target import LARGE_BYTES, Target
from causal_attn.export.torch_output import quiet
from causal_attn.export.write.complex_pairs import has_complex, write_complex_as_pairs
from causal_attn.export.write.inline_functions import write_functions
from causal_attn.export.write.ordinary_ops import ORDINARY
from causal_attn.export.write.repeated_nodes import drop_repeated_nodes
from causal_attn.export.write.rewriting import rules_at_their_operators
from causal_attn.export.write.rotary import expand_angles
from causal_attn.export.write.weights import weights_aside
from causal_attn.package.contract import TensorContract

__all__ = ["Lowered", "lower", "save_model", "tensor_contracts"]


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A model and what it needs.

    Attributes:
        model: Not yet in a file.
        onnxruntime: ``major.minor`` of the oldest ONNX Runtime that runs it.
    """

    model: ir.Model
    onnxruntime: str


def lower(captured: Captured, form: Form, opset: int) -> Lowered:
    """Write `captured` as an ONNX model at `opset`, attention in `form`.

    Raises:
        CaptureError: `form` cannot write an attention of the program, a buffer or an input is
            written to, or torch.onnx has no translation for an op; the message names it and the
            log.
    """
    program, target, log = captured.program, captured.target, captured.log
    _refuse_calls(program, form)
    try:
        with quiet(log), torch.no_grad():
            own: dict[Any, Any] = {**ORDINARY, ATTEND: form.decompose, SDPA: lower_sdpa}
            lowered = program
            # torch.onnx decomposes a program itself, which for a large model takes its time.
            if has_complex(program) or not _is_plain(program, own):
                lowered = program.run_decompositions(own)
                _refuse_mutation(lowered)
                write_complex_as_pairs(lowered)
                if not target.guarded:
                    # Decompositions branch too, and torch checks their guards against nothing.
                    refuse_narrowed_dims(lowered, target)
            onnx_program = torch.onnx.export(
                lowered,
                (),
                dynamo=True,
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
            if onnx_program is None:
                raise CaptureError(f"torch.onnx returned no model; {log.pointer()}.")
            with weights_aside(onnx_program.model), rules_at_their_operators():
                onnx_program.optimize()
    except CaptureError:
        raise
    # Any failure of the exporter, under any type, becomes ours with its report in the log.
    except Exception as error:  # noqa: BLE001
        log.add(traceback.format_exc())
        found = re.search(r"No ONNX function found for .*?op='([\w.]+)'", str(error))
        what = (
            found[1] if found else (str(error).strip().splitlines() or [type(error).__name__])[0]
        )
        raise CaptureError(
            f"`target` must use only ops that torch.onnx can write at opset {opset}, got "
            f"{what[:300]}; {log.pointer()}."
        ) from None
    model: ir.Model = onnx_program.model
    _name_tensors(model, target)
    onnxruntime = write_functions(model, form.functions)
    if target.reference is not None:
        drop_repeated_nodes(model)
    expand_angles(model)
    _strip_metadata(model)
    _name_dims(model, captured)
    _drop_unused_results(model)
    return Lowered(model=model, onnxruntime=onnxruntime)


def save_model(model: ir.Model, path: Path) -> None:
    """Write `model`, with large weights in ``<path>.data`` beside it: protobuf ends at 2 GiB."""
    size = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    external = f"{path.name}.data" if size > LARGE_BYTES else None
    ir.save(model, path, external_data=external)


def tensor_contracts(values: Iterable[ir.Value]) -> tuple[TensorContract, ...]:
    """Name, dtype and dims of graph inputs or outputs."""
    return tuple(
        TensorContract(
            name=value.name or "",
            dtype=value.dtype.numpy().name if value.dtype is not None else "",
            dims=tuple(
                dim if isinstance(dim, int) else (dim.value or "?") for dim in value.shape or ()
            ),
        )
        for value in values
    )


def _refuse_calls(program: ExportedProgram, form: Form) -> None:
    """Refuse a call of the op that `form` cannot write, before torch wraps the error in its own.

    Raises:
        CaptureError: Saying what the form lacks.
    """
    for node in program.graph.find_nodes(op="call_function", target=ATTEND):
        values = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        if reason := form.lacks(Demand.of_call(AttendCall.of(*values[0], **values[1]))):
            raise CaptureError(f"`form` must fit the attention of the target: {reason}")


def _is_plain(program: ExportedProgram, own: Container[Any]) -> bool:
    """Whether nothing in `program` is among our `own` to lower, or writes to a tensor."""
    graphs = [
        module.graph
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
    ]
    targets = [
        node.target for graph in graphs for node in graph.nodes if node.op == "call_function"
    ]
    return not any(
        target in own or (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable)
        for target in targets
        # A constant made inside forward is detached in place, which changes no value.
        if target is not torch.ops.aten.detach_.default
    )


def _refuse_mutation(program: ExportedProgram) -> None:
    """Refuse a buffer written in forward: every run of the graph would start from the first value.

    torch.export lists such writes only once the program is functional, after decompositions.

    Raises:
        CaptureError: Naming the buffers.
    """
    signature = program.graph_signature
    mutated = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if mutated:
        raise CaptureError(
            f"`target` must not change its buffers or inputs, got writes to {sorted(mutated)}: an "
            "ONNX graph keeps no state, so every run would start from the first value. Take the "
            "cache as an input and return the new one."
        )


def _name_tensors(model: ir.Model, target: Target) -> None:
    """Give inputs and outputs the target's names, which nodes do not have by then."""
    for values, names in (
        (model.graph.inputs, target.examples),
        (model.graph.outputs, target.outputs),
    ):
        for value, name in zip(values, names, strict=True):
            value.name = name


def _strip_metadata(model: ir.Model) -> None:
    """Remove what torch.onnx writes about the machine it ran on: stack traces with paths."""
    model.metadata_props.clear()
    model.doc_string = None
    # "2.13.0+cpu" and "2.13.0+cu130" write the same graph.
    model.producer_version = torch.__version__.partition("+")[0]
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for part in (graph, *graph.subgraphs()):
            part.metadata_props.clear()
            part.doc_string = None
            for value in (*part.inputs, *part.initializers.values()):
                value.metadata_props.clear()
                value.doc_string = None
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            value.doc_string = None


def _name_dims(model: ir.Model, captured: Captured) -> None:
    """Give dims the target's names: an ExportedProgram reaches torch.onnx with ``s33``.

    Shapes of the graph's inputs and outputs are torch's own. Shapes between them are dropped: an
    inference on operators that torch does not know leaves wrong ones (a total length of 0).
    """
    names: dict[str, str] = {}
    inputs = {name: value.shape for name, value in captured.inputs.items()}
    for input_name, axes in captured.target.dims.items():
        for axis, name in axes.items():
            names[str(inputs[input_name][axis])] = name
    results: Any = captured.program.graph.output_node().args[0]
    outputs = [result.meta["val"].shape for result in results if result is not None]
    for node in model.graph.all_nodes():
        for output in node.outputs:
            output.shape = None
    for value in model.graph.inputs:
        value.shape = _shape(inputs[value.name or ""], names)
    for value, shape in zip(model.graph.outputs, outputs, strict=True):
        value.shape = _shape(shape, names)


def _shape(sizes: Iterable[int | torch.SymInt], names: Mapping[str, str]) -> ir.Shape:
    return ir.Shape([size if isinstance(size, int) else _named(size, names) for size in sizes])


def _named(size: torch.SymInt, names: Mapping[str, str]) -> str:
    # Swap all symbols in one pass: names given to one must not be read as symbols again.
    text = re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), str(size))
    terms = [term.strip() for term in text.split("+")]
    return " + ".join(sorted(terms)) if all(term.isidentifier() for term in terms) else text


def _drop_unused_results(model: ir.Model) -> None:
    """Blank optional outputs nobody reads, so that a kernel does not fill them.

    But not those of GroupQueryAttention: ONNX Runtime's CPU kernel works in tiles only when it
    writes the present, and otherwise holds all scores (2,048 tokens: 0.9 against 0.6 x torch).
    """
    RemoveUnusedNodesPass()(model)
    for node in model.graph.all_nodes():
        if node.op_type == "GroupQueryAttention":
            continue
        for output in node.outputs:
            if not output.uses() and not output.is_graph_output():
                output.name = ""
