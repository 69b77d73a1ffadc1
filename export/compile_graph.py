"""From a graph that torch.compile captured to a `Target`, and from its results back.

torch.compile hands over torch-level code with everything as an argument: tensors, weights, and
every dynamic length as an integer of its own. An ONNX graph takes and returns tensors, so lengths
are read off the tensors that have them, and what is no computed tensor (a length, an input that is
handed on, None) is added to the results outside the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._sympy.numbers import int_oo

from causal_attn.errors import CaptureError
from causal_attn.export.target import Target

__all__ = ["Plan", "plan_graph"]

MAX_SIZE = 2**31
"""Stands for no upper limit."""

_WEIGHT = re.compile(r"_(parameters|buffers)_")

Result = Callable[[Sequence[Tensor], Sequence[Any]], Any]
"""One result, from what ONNX Runtime computed and what the graph was called with."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a captured graph becomes an ONNX graph and a call of one a call of the other.

    Attributes:
        target: What to export; it returns the tensors that are computed, as a tuple.
        positions: Of every input of `target` among the arguments of the captured graph.
        weights: Inputs that are parameters or buffers: they do not change from call to call.
        sizes: Name or formula of every dynamic dim to what it is in symbols.
        results: How each result of the captured graph comes about.
    """

    target: Target
    positions: Mapping[str, int]
    weights: frozenset[str]
    sizes: Mapping[str, sympy.Expr]
    results: tuple[Result, ...]

    def shape(self, name: str, symbols: Mapping[sympy.Symbol, int]) -> tuple[int, ...]:
        """The shape of input `name` where the symbols have these sizes."""
        shape = list(self.target.examples[name].shape)
        for axis, dim in self.target.dims[name].items():
            shape[axis] = int(self.sizes[dim].xreplace(symbols))
        return tuple(shape)

    def describe(self) -> dict[str, str]:
        """Inputs that are not weights, such as ``{"x": "float32[2, s27, 8]"}``."""
        return {
            name: f"{str(tensor.dtype).removeprefix('torch.')}{self._dims(name)}".replace("'", "")
            for name, tensor in self.target.examples.items()
            if name not in self.weights
        }

    def _dims(self, name: str) -> list[int | str]:
        named = self.target.dims[name]
        return [
            named.get(axis, size) for axis, size in enumerate(self.target.examples[name].shape)
        ]


def plan_graph(captured: fx.GraphModule, inputs: Sequence[Any]) -> Plan:
    """Plan the export of `captured`, called with `inputs`.

    Raises:
        CaptureError: An argument is neither a tensor nor an integer, a result is a view of an
            argument, or the graph computes no tensor.
    """
    arguments = captured.graph.find_nodes(op="placeholder")
    symbols = _Symbols(arguments, inputs)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    examples: dict[str, Tensor] = {}
    positions: dict[str, int] = {}
    sources: dict[str, fx.Node] = {}
    scalars: list[tuple[fx.Node, fx.Node]] = []
    for position, (node, value) in enumerate(zip(arguments, inputs, strict=True)):
        free = not isinstance(value, Tensor)
        if free and symbols.owner(node) is not None:
            continue
        if free and not isinstance(value, int | torch.SymInt):
            raise CaptureError(
                f"`f` must take tensors and integers, got {type(value).__name__} for "
                f"`{node.name}`. Fix it beforehand, with functools.partial or a closure."
            )
        name = _input_name(node, examples)
        copies[node] = graph.placeholder(name)
        # ONNX Runtime gets contiguous memory; tracing sees the same.
        examples[name] = torch.tensor(symbols.hint(node)) if free else value.detach().contiguous()
        positions[name], sources[name] = position, node
        if free:
            scalars.append((node, copies[node]))
    for node in arguments:
        owner = None if node in copies else symbols.owner(node)
        if owner is not None:
            copies[node] = graph.call_method("size", (copies[owner[0]], owner[1]))
    for node, scalar in scalars:
        copies[node] = graph.call_method("item", (scalar,))
    results: Sequence[Any] = ()
    for node in captured.graph.nodes:
        if node.op == "output":
            results = node.args[0]
        elif node.op != "placeholder" and node.target is not torch._C._set_grad_enabled:
            # Gradients are refused, so switching them on and off means nothing here.
            copies[node] = graph.node_copy(node, copies.__getitem__)
    computed, makers = _results(results, arguments, symbols)
    graph.output(tuple(copies[node] for node in computed))
    _drop_dead(graph)
    kept = {node.target for node in graph.find_nodes(op="placeholder")}
    dims, sizes, ranges = _dims({name: sources[name] for name in examples if name in kept})
    return Plan(
        target=Target(
            module=fx.GraphModule(captured, graph),
            examples={name: tensor for name, tensor in examples.items() if name in kept},
            dims=dims,
            outputs=tuple(f"output_{index}" for index in range(len(computed))),
            # torch.compile hands over whatever the code takes, a norm that is switched off too.
            may_ignore=True,
            ranges=ranges,
        ),
        positions={name: position for name, position in positions.items() if name in kept},
        weights=frozenset(
            name for name in kept
            if isinstance(inputs[positions[name]], torch.nn.Parameter)
            or _WEIGHT.search(str(sources[name].target))
        ),
        sizes=sizes,
        results=makers,
    )  # fmt: skip


class _Symbols:
    """Where the symbols of dynamic lengths come from."""

    def __init__(self, arguments: Sequence[fx.Node], inputs: Sequence[Any]) -> None:
        self._owners: dict[sympy.Expr, tuple[fx.Node, int]] = {}
        self._places: dict[sympy.Expr, Callable[[Sequence[Any]], int]] = {}
        for position, (node, value) in enumerate(zip(arguments, inputs, strict=True)):
            if isinstance(value, Tensor):
                for axis, size in enumerate(node.meta["example_value"].shape):
                    if isinstance(size, torch.SymInt):
                        self._owners.setdefault(size.node.expr, (node, axis))
                        self._places.setdefault(size.node.expr, _size_of(position, axis))
            elif (symbol := _expression(node)) is not None:
                self._places[symbol] = _argument(position)

    def owner(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        """The tensor and the axis that an integer argument is the length of."""
        symbol = _expression(node)
        return None if symbol is None else self._owners.get(symbol)

    def hint(self, node: fx.Node) -> int:
        """The value of an integer argument in the call that is being compiled."""
        value = node.meta["example_value"]
        return int(value.node.hint if isinstance(value, torch.SymInt) else value)

    def evaluator(self, value: torch.SymInt) -> Callable[[Sequence[Any]], int]:
        """How to compute `value` from the arguments of a call."""
        expression = value.node.expr
        places = {symbol: self._places[symbol] for symbol in expression.free_symbols}

        def evaluate(arguments: Sequence[Any]) -> int:
            return int(
                expression.xreplace(
                    {symbol: sympy.Integer(place(arguments)) for symbol, place in places.items()}
                )
            )

        return evaluate


def _results(
    results: Sequence[Any], arguments: Sequence[fx.Node], symbols: _Symbols
) -> tuple[list[fx.Node], tuple[Result, ...]]:
    """The nodes to compute, each once, and how every result follows from them."""
    computed: list[fx.Node] = []
    makers: list[Result] = []
    for result in results:
        value = result.meta["example_value"] if isinstance(result, fx.Node) else result
        if isinstance(result, fx.Node) and result in arguments:
            makers.append(_handed_on(arguments.index(result)))
        elif isinstance(value, Tensor):
            _refuse_view(result, arguments)
            if result not in computed:
                computed.append(result)
            makers.append(_computed(computed.index(result)))
        elif isinstance(value, torch.SymInt):
            makers.append(_length(symbols.evaluator(value)))
        else:
            makers.append(_constant(value))
    if not computed:
        raise CaptureError(
            "`f` must compute a tensor, got a graph without one. Run it outside torch.compile."
        )
    return computed, tuple(makers)


def _refuse_view(result: fx.Node, arguments: Sequence[fx.Node]) -> None:
    """A result that shares memory with an argument would be a copy: writes would not be seen."""
    storage = StorageWeakRef(result.meta["example_value"].untyped_storage())
    for node in arguments:
        value = node.meta["example_value"]
        if isinstance(value, Tensor) and StorageWeakRef(value.untyped_storage()) == storage:
            raise CaptureError(
                f"`f` must not return a view of an argument, got `{result.name}`, which is one of "
                f"`{node.name}`: from ONNX Runtime it would be a copy. Return "
                f"{result.name}.clone(), or take the view outside."
            )


def _dims(
    sources: Mapping[str, fx.Node],
) -> tuple[dict[str, dict[int, str]], dict[str, sympy.Expr], dict[str, tuple[int, int]]]:
    """Dynamic axes by input, what their names stand for, and ranges that torch.compile guards."""
    dims: dict[str, dict[int, str]] = {}
    sizes: dict[str, sympy.Expr] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for name, node in sources.items():
        dims[name] = {}
        value = node.meta["example_value"]
        for axis, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if not isinstance(size, torch.SymInt):
                continue
            expression = size.node.expr
            dim = dims[name][axis] = str(expression)
            sizes[dim] = expression
            if expression.is_symbol:
                bound = size.node.shape_env.bound_sympy(expression)
                high = MAX_SIZE if bound.upper is int_oo else min(int(bound.upper), MAX_SIZE)
                ranges[dim] = (int(bound.lower), high)
    return dims, sizes, ranges


def _drop_dead(graph: fx.Graph) -> None:
    """Erase lengths that nothing reads and inputs left over.

    Not fx's own elimination, for which a write such as ``x.add_(1)`` is dead: it must be refused.
    """
    for node in reversed(graph.nodes):
        value = node.meta.get("example_value")
        length = node.op == "call_method" and node.target in ("size", "item")
        if not node.users and (
            node.op == "placeholder" or length or isinstance(value, torch.SymInt)
        ):
            graph.erase_node(node)


def _input_name(node: fx.Node, taken: Mapping[str, Tensor]) -> str:
    """``L_x_`` becomes ``x``: torch.compile's name of a local."""
    base = re.sub(r"^[Ll]_(?=.)|_$", "", str(node.target))
    base = base if base.isidentifier() and not base.startswith("_") else f"input_{base}"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def _expression(node: fx.Node) -> sympy.Expr | None:
    value = node.meta.get("example_value")
    return value.node.expr if isinstance(value, torch.SymInt) else None


def _argument(position: int) -> Callable[[Sequence[Any]], int]:
    return lambda arguments: int(arguments[position])


def _size_of(position: int, axis: int) -> Callable[[Sequence[Any]], int]:
    return lambda arguments: int(arguments[position].shape[axis])


def _computed(index: int) -> Result:
    return lambda computed, _: computed[index]


def _handed_on(position: int) -> Result:
    return lambda _, arguments: arguments[position]


def _length(evaluate: Callable[[Sequence[Any]], int]) -> Result:
    return lambda _, arguments: evaluate(arguments)


def _constant(value: Any) -> Result:
    return lambda *_: value
