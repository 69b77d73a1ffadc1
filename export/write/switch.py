"""One graph out of several that say the same: an ONNX ``If`` on the number of tokens.

No form is the fastest at every length. The branches share the graph's inputs; only the branch
that a call takes is run, and ONNX Runtime hands its results on without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import replace_all_uses_with

__all__ = ["switch"]


def switch(models: Sequence[ir.Model], names: Sequence[str], last: Sequence[int]) -> ir.Model:
    """A model that runs ``models[i]`` for tokens up to ``last[i]``, and the last one beyond.

    Args:
        models: At least two, of one opset, with the same inputs and outputs; they are consumed.
        names: One for each, distinct: they prefix the names inside its branch.
        last: Ascending, one fewer than models.
    """
    first = models[0].graph
    inputs = [_like(value) for value in first.inputs]
    outputs = [_like(value) for value in first.outputs]
    start, end, axis = next(
        (value, position + 1, position)
        for value in inputs
        for position, dim in enumerate(value.shape or ())
        if not isinstance(dim, int) and dim.value == "tokens"
    )
    tokens = ir.node("Shape", [start], {"start": axis, "end": end}, name="tokens")
    tokens.outputs[0].name = "tokens"
    nodes, initializers = [tokens], []
    branches = [_branch(model, inputs, name) for model, name in zip(models, names, strict=True)]
    otherwise = branches[-1]
    for position, limit in reversed(list(enumerate(last))):
        name = names[position]
        bound = ir.Value(
            name=f"last_{name}",
            shape=ir.Shape([1]),
            type=ir.TensorType(ir.DataType.INT64),
            const_value=ir.tensor(np.array([limit], np.int64), name=f"last_{name}"),
        )
        fits = ir.node("LessOrEqual", [tokens.outputs[0], bound], name=f"fits_{name}")
        fits.outputs[0].name = f"fits_{name}"
        node = ir.node(
            "If",
            fits.outputs,
            {"then_branch": branches[position], "else_branch": otherwise},
            num_outputs=len(outputs),
            name=f"choose_{name}",
        )
        for value, output in zip(node.outputs, outputs, strict=True):
            value.name = f"choose_{name}.{output.name}"
            value.shape, value.type = output.shape, output.type
        initializers.append(bound)
        nodes.append(fits)
        otherwise = ir.Graph([], node.outputs, nodes=[node], name=f"from_{name}")
    outermost = otherwise[0]
    results = list(otherwise.outputs)
    otherwise.outputs.clear()
    otherwise.remove(outermost)
    for value, output in zip(results, outputs, strict=True):
        value.name = output.name
    graph = ir.Graph(
        inputs,
        results,
        nodes=[*nodes, outermost],
        initializers=initializers,
        opset_imports={
            domain: version for model in models for domain, version in model.opset_imports.items()
        },
        name=first.name,
    )
    return ir.Model(graph, ir_version=max(model.ir_version for model in models))


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, shape=value.shape, type=value.type)


def _branch(model: ir.Model, inputs: Sequence[ir.Value], name: str) -> ir.Graph:
    """The graph of `model` reading `inputs` from around it, every name of its own prefixed."""
    graph = model.graph
    own = list(graph.inputs)
    replace_all_uses_with(own, inputs)
    graph.inputs.clear()
    for value in list(graph.initializers.values()):
        value.name = f"{name}.{value.name}"
    for part in (graph, *graph.subgraphs()):
        for value in part.inputs:
            value.name = f"{name}.{value.name}"
    for node in graph.all_nodes():
        node.name = f"{name}.{node.name}"
        for value in node.outputs:
            if value.name:
                value.name = f"{name}.{value.name}"
    graph.name = name
    return graph
