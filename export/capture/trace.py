"""From a target to an ExportedProgram, refusing what torch.export lets through silently."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as fx_config
from torch.fx.experimental.symbolic_shapes import statically_known_true

from causal_attn.attention.operator import AsOp
from causal_attn.errors import CaptureError
from causal_attn.export.capture.causal_bias import biases_as_masks
from causal_attn.export.capture.einx_sizes import einx_sizes
from causal_attn.export.capture.encoder_masks import masks_as_given
from causal_attn.export.capture.fixed_lengths import noting_fixed_lengths
from causal_attn.export.capture.flex_attention import flex_as_masks
from causal_attn.export.capture.hashed_sizes import hashed_sizes
from causal_attn.export.capture.limits import advised_dims, table_end, with_limits
from causal_attn.export.capture.made_buffers import made_buffers
from causal_attn.export.capture.mask_indices import TrianglesAsMasks, index_by_masks
from causal_attn.export.capture.plain_data import DataAsDetached
from causal_attn.export.capture.regions import inline_regions
from causal_attn.export.capture.sdpa import SDPA, rewrite_sdpa
from causal_attn.export.capture.symbolic_len import symbolic_len
from causal_attn.export.capture.whole_steps import WholeSteps
from causal_attn.export.dims import Limits, bounded
from causal_attn.export.eager import as_written
from causal_attn.export.one_run import evaluating
from causal_attn.export.target import Target
from causal_attn.export.torch_output import ExportLog, quiet

__all__ = ["Traced", "capture", "input_values", "refuse_narrowed_dims"]

_MOST_TRIES = 6
"""Of tracing: each takes in one thing that torch said of the one before."""


class Traced(NamedTuple):
    """A program and the target as it was traced: with the limits that its code turned out to have.

    Of a target whose dims its names suggest, axes that the code fixes have lost their names.
    """

    program: ExportedProgram
    target: Target


def capture(target: Target, log: ExportLog) -> Traced:
    """Trace `target` with torch.export, its named dims dynamic.

    Args:
        target: What to trace.
        log: Gets whatever torch prints.

    Raises:
        CaptureError: A Python branch on a length fixes it, random numbers are drawn, an input is
            not read, or torch.export cannot trace the code. The message names the log file.
        InputError: An attention in the target has arguments that ONNX reads differently.
    """
    program, target = _trace(target, log)
    inline_regions(program)
    _refuse_random(program)
    if not target.guarded:
        target = _within_tables(program, target)
        refuse_narrowed_dims(program, target)
        _refuse_dead_inputs(program, target)
    index_by_masks(program)
    rewrite_sdpa(program)
    return Traced(program, target)


def _trace(given: Target, log: ExportLog) -> Traced:
    """Trace `given`, with the bounds that its own code has where torch asks for bounds."""
    target, oblivious = given, False
    lines: list[str] = []
    # What torch said before a try that may not help: it is told if that fails.
    told: tuple[str, str] | None = None
    text = kind = ""
    for _ in range(_MOST_TRIES):
        try:
            with noting_fixed_lengths(lines), _tracing(target, log, oblivious=oblivious):
                program = torch.export.export(
                    target.module,
                    args=(),
                    kwargs=target.arguments(target.examples),
                    dynamic_shapes=_dynamic_shapes(target),
                )
            return Traced(program, target)
        # torch.export runs the caller's code: whatever that raises arrives here, under any type.
        except Exception as error:  # noqa: BLE001
            log.add(traceback.format_exc())
            text = str(error)
            kind = type(error).__name__
        relaxed = None if target.guarded else with_limits(target, text, given)
        if relaxed is None:
            # Views of views make torch ask whether a length times a width is that width's
            # multiple, which it is; asked for less, it does not.
            if oblivious or target.guarded or "generated guard" not in text:
                break
            told, oblivious = told or (text, kind), True
        else:
            if relaxed.examples is not target.examples:
                told = told or (text, kind)
            target = relaxed
    raise CaptureError(_explain(*(told or (text, kind)), target, log, lines))


@contextlib.contextmanager
def _tracing(target: Target, log: ExportLog, *, oblivious: bool) -> Iterator[None]:
    """What is different while `target` is traced.

    Args:
        target: What is traced.
        log: Gets whatever torch prints.
        oblivious: Whether torch takes sizes for what they mostly are, not 0 and not 1.
    """
    with (
        quiet(log),
        evaluating(target.module),
        torch.no_grad(),
        AsOp(),
        masks_as_given(),
        TrianglesAsMasks(),
        biases_as_masks(),
        symbolic_len(),
        einx_sizes(),
        hashed_sizes(),
        WholeSteps(),
        DataAsDetached(),
        made_buffers(target.module),
        # What torch.compile hands over is source already.
        contextlib.nullcontext() if target.guarded else as_written(),
        flex_as_masks(),
        fx_config.patch(backed_size_oblivious=oblivious),  # type: ignore[attr-defined]
    ):
        yield


def _within_tables(program: ExportedProgram, target: Target) -> Target:
    """`target`, limited to the tokens that its tables of positions have rows for.

    Raises:
        CaptureError: The caller asked for more.
    """
    size = next(
        value.shape[axis]
        for name, value in input_values(program, target).items()
        for axis, dim in target.dims[name].items()
        if dim == "tokens"
    )
    end = table_end(program, size) if isinstance(size, torch.SymInt) else None
    limits = target.limits.get("tokens", Limits())
    if end is None or (limits.high is not None and limits.high <= end):
        return target
    if limits.high is not None:
        raise CaptureError(
            f"`dims` must keep to the positions that the target has, {end} tokens, got "
            f"{bounded('tokens', limits)!r}. Write 'tokens<={end}'."
        )
    return replace(target, limits={**target.limits, "tokens": replace(limits, high=end)})


def input_values(program: ExportedProgram, target: Target) -> dict[str, Tensor]:
    """The fake tensor of every input by the name that `target` has for it.

    torch.export gives placeholders names of its own: ``X`` becomes ``x``.
    """
    values = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    traced = program.graph_signature.user_inputs
    return {name: values[own] for own, name in zip(traced, target.examples, strict=True)}


def _dynamic_shapes(target: Target) -> dict[str, dict[int, Any]]:
    made: dict[str, Any] = {}
    for dim in dict.fromkeys(dim for axes in target.dims.values() for dim in axes.values()):
        limits = target.limits.get(dim, Limits())
        ends = target.untraced if dim == "tokens" else ()
        high = None if limits.high is None else limits.high - (limits.high in ends)
        # A sum of dims is not one to torch; what it comes to is checked afterwards.
        free = target.guarded or "+" in dim
        made[dim] = Dim.AUTO if free else Dim(dim, min=limits.low, max=high)
    shapes: dict[str, Any] = {
        name: {axis: made[dim] for axis, dim in axes.items()} for name, axes in target.dims.items()
    }
    return target.arguments(shapes)


def _explain(text: str, kind: str, target: Target, log: ExportLog, lines: Sequence[str]) -> str:
    advised = advised_dims(target, text)
    text = re.sub(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", r"\1.shape[\2]", text)
    fixed = re.search(
        r"marked (\w+) as dynamic but your code specialized it to be a constant", text
    )
    related = re.search(r"Constraints violated \(([\w, ]+)\)|(\w+) = (\w+)", text)
    where = f"{log.pointer()}."
    if fixed:
        line = f" A length is first made a number in {lines[0]}." if lines else ""
        return (
            f"`{fixed[1]}` must stay dynamic, but the code fixes it to the size of the example: a "
            "Python branch, int() or a buffer of that size depends on it. Make it a tensor "
            f"operation, or drop the dim from `dims`.{line} {where[0].upper()}{where[1:]}"
        )
    if related and "onstraint" in text:
        first = next((line.strip(" -") for line in text.splitlines()[1:] if line.strip()), text)
        remedy = f" If only those sizes are meant, write dims={advised}." if advised else ""
        return (
            f"`dims` must hold for every size, but the code asks for more: {first} "
            "A Python `if` on a length is decided once, while tracing, and the graph keeps only "
            f"the branch taken.{remedy} {where[0].upper()}{where[1:]}"
        )
    head = text.strip().splitlines()[0] if text.strip() else kind
    return (
        f"`target` must be traceable by torch.export, got {kind}: {head[:300]} "
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
            limits = target.limits.get(dim, Limits())
            # Traced to one below the end: see `causal_attn.export.capture.limits`.
            wanted = 2**31 if limits.high is None else limits.high - len(target.untraced)
            if low > max(2, limits.low) or high < wanted:
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
