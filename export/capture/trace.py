"""From a target to an ExportedProgram, refusing what torch.export lets through silently."""

from __future__ import annotations

import re
import traceback
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from causal_attn.attention.operator import AsOp
from causal_attn.errors import CaptureError
from causal_attn.export.capture.sdpa import SDPA, rewrite_sdpa
from causal_attn.export.target import Target, evaluating
from causal_attn.export.torch_output import ExportLog, quiet

__all__ = ["capture", "input_values", "refuse_narrowed_dims"]


def capture(target: Target, log: ExportLog) -> ExportedProgram:
    """Trace `target` with torch.export, its named dims dynamic.

    Args:
        target: What to trace.
        log: Gets whatever torch prints.

    Raises:
        CaptureError: A Python branch on a length fixes it, random numbers are drawn, an input is
            not read, or torch.export cannot trace the code. The message names the log file.
        InputError: An attention in the target has arguments that ONNX reads differently.
    """
    dynamic = _dynamic_shapes(target)
    try:
        with quiet(log), evaluating(target.module), torch.no_grad(), AsOp():
            program = torch.export.export(
                target.module,
                args=(),
                kwargs=target.arguments(target.examples),
                dynamic_shapes=dynamic,
            )
    # torch.export runs the caller's code: whatever that raises arrives here, under any type.
    except Exception as error:  # noqa: BLE001
        log.add(traceback.format_exc())
        raise CaptureError(_explain(error, target, log)) from None
    _refuse_random(program)
    if not target.guarded:
        refuse_narrowed_dims(program, target)
        _refuse_dead_inputs(program, target)
    rewrite_sdpa(program)
    return program


def input_values(program: ExportedProgram, target: Target) -> dict[str, Tensor]:
    """The fake tensor of every input by the name that `target` has for it.

    torch.export gives placeholders names of its own: ``X`` becomes ``x``.
    """
    values = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    traced = program.graph_signature.user_inputs
    return {name: values[own] for own, name in zip(traced, target.examples, strict=True)}


def _dynamic_shapes(target: Target) -> dict[str, dict[int, Any]]:
    made: dict[str, Any] = {}
    shapes: dict[str, Any] = {
        name: {
            # A sum of dims is not one to torch; what it comes to is checked afterwards.
            axis: Dim.AUTO if target.guarded or "+" in dim else made.setdefault(dim, Dim(dim))
            for axis, dim in axes.items()
        }
        for name, axes in target.dims.items()
    }
    return target.arguments(shapes)


def _explain(error: Exception, target: Target, log: ExportLog) -> str:
    text = re.sub(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", r"\1.shape[\2]", str(error))
    fixed = re.search(
        r"marked (\w+) as dynamic but your code specialized it to be a constant", text
    )
    related = re.search(r"Constraints violated \(([\w, ]+)\)|(\w+) = (\w+)", text)
    where = f"{log.pointer()}."
    if fixed:
        return (
            f"`{fixed[1]}` must stay dynamic, but the code fixes it to the size of the example: a "
            "Python branch, int() or a buffer of that size depends on it. Make it a tensor "
            f"operation, or drop the dim from `dims`; {where}"
        )
    if related and "onstraint" in text:
        first = next((line.strip(" -") for line in text.splitlines()[1:] if line.strip()), text)
        return (
            f"`dims` must hold for every size, but the code asks for more: {first} "
            "A Python `if` on a length is decided once, while tracing, and the graph keeps only "
            f"the branch taken; {where}"
        )
    head = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return (
        f"`target` must be traceable by torch.export, got {type(error).__name__}: {head[:300]} "
        f"(inputs {list(target.examples)}); {where}"
    )


def _refuse_random(program: ExportedProgram) -> None:
    """Numbers drawn in forward: no two runs agree, so nothing can be checked."""
    random = {
        str(node.target)
        for node in program.graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        # Its dropout is refused with its other arguments.
        and node.target is not SDPA
        # dropout(input, p, train)
        and not (
            node.target is torch.ops.aten.dropout.default and 0 in (node.args[1], node.args[2])
        )
    }
    if random:
        raise CaptureError(
            f"`target` must compute the same each time, got random numbers from {sorted(random)}. "
            "Put it in eval mode, or draw them outside and pass them in."
        )


def refuse_narrowed_dims(program: ExportedProgram, target: Target) -> None:
    """A branch such as ``if tokens > 4`` narrows a dim; the guard does not reach ONNX.

    Raises:
        CaptureError: A dim of `target` has one size, or not every size.
    """
    values = input_values(program, target)
    sizes = {
        dim: values[name].shape[axis]
        for name, axes in target.dims.items()
        for axis, dim in axes.items()
    }
    for name, value in values.items():
        for axis, dim in target.dims[name].items():
            size = value.shape[axis]
            if "+" in dim:
                terms = [sizes[term.strip()] for term in dim.split("+")]
                if not statically_known_true(size == sum(terms)):
                    raise CaptureError(
                        f"`{name}` must have a dim of {dim} to the code too, got {size}."
                    )
                continue
            if not isinstance(size, torch.SymInt):
                raise CaptureError(
                    f"`{dim}` of `{name}` must stay dynamic, but the code fixes it to {size}."
                )
            allowed = program.range_constraints.get(size.node.expr)
            if allowed is None:
                continue
            low, high = allowed.lower, allowed.upper
            if low > 2 or high < 2**31:
                raise CaptureError(
                    f"`{dim}` of `{name}` must be free, but a branch in the code holds only "
                    f"for {low} <= {dim} <= {high}, and a graph keeps only the branch that the "
                    "example took. Write it as a tensor operation that is right for every length."
                )


def _refuse_dead_inputs(program: ExportedProgram, target: Target) -> None:
    """An input no node reads: two inputs were one tensor, or the code ignores it."""
    inputs = zip(program.graph_signature.user_inputs, target.examples, strict=True)
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    dead = [name for traced, name in inputs if not nodes[traced].users]
    if dead:
        raise CaptureError(
            f"`example_inputs` must all be read, but {dead} reach no output. Leave them out, or "
            "mend the code that ignores them."
        )
