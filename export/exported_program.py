"""A program that the caller traced already, with torch.export, as a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from causal_attn.errors import InputError
from causal_attn.export.dims import Dims, Limits, bounded, suggested_axes
from causal_attn.export.user_module import with_parameters

__all__ = ["OpenedProgram", "open_program"]


@dataclass(frozen=True, kw_only=True)
class OpenedProgram:
    """What an ``ExportedProgram`` says of itself.

    Attributes:
        module: Its ``forward`` takes the tensors of the program by name and computes what the
            program does.
        examples: The tensors it was traced with, by name.
        dims: Its dynamic axes with their bounds; ``None``: it has none.
    """

    module: nn.Module
    examples: Mapping[str, Tensor]
    dims: Dims | None


def open_program(program: ExportedProgram, *, named: bool) -> OpenedProgram:
    """`program` as a module with its own examples and dynamic axes.

    torch keeps no names of dims. Inputs whose names suggest them have those; of others, one
    dynamic size that is the first axis of inputs is ``batch`` and the one besides it ``tokens``.

    Args:
        program: From ``torch.export.export`` or ``torch.export.load``.
        named: Whether the caller says what the axes are called.

    Raises:
        InputError: The program holds no example inputs, or its axes must be named and are not.
    """
    if program.example_inputs is None:
        raise InputError(
            "`target` must hold the inputs it was traced with, got an ExportedProgram without "
            "any. Trace it again with torch.export.export."
        )
    leaves, spec = tree_flatten(program.example_inputs)
    names = [
        inputs.arg.name
        for inputs in program.graph_signature.input_specs
        if inputs.kind is InputKind.USER_INPUT
    ]
    given = dict(zip(names, leaves, strict=True))
    examples = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in examples]
    module: nn.Module = with_parameters(_Program, parameters)(program, given, spec)
    dims = None if named else _dims(program, examples)
    return OpenedProgram(module=module, examples=examples, dims=dims)


class _Program(nn.Module):
    """Calls a program with its tensors by name; what else it takes is as it was traced."""

    def __init__(self, program: ExportedProgram, given: Mapping[str, Any], spec: TreeSpec) -> None:
        super().__init__()
        # Its guards would fail at the sizes that are tried to find the ends of its dims.
        self.program = program.module(check_guards=False)
        self.names = tuple(given)
        self.constants = {
            name: value for name, value in given.items() if not isinstance(value, Tensor)
        }
        self.spec = spec

    def train(self, mode: bool = True) -> Self:
        """Nothing: a program is in the mode that it was traced in, and says so with an error."""
        return self

    def call(self, tensors: Mapping[str, Tensor]) -> Any:
        values = [tensors.get(name, self.constants.get(name)) for name in self.names]
        args, kwargs = tree_unflatten(values, self.spec)
        return self.program(*args, **kwargs)


def _dims(program: ExportedProgram, examples: Mapping[str, Tensor]) -> Dims | None:
    """Every dynamic axis with a name and its bounds.

    Raises:
        InputError: What they are called does not follow from the program.
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    sizes = {
        name: {
            axis: size.node.expr
            for axis, size in enumerate(nodes[name].meta["val"].shape)
            if isinstance(size, torch.SymInt)
        }
        for name in examples
    }
    symbols = [symbol for axes in sizes.values() for symbol in axes.values()]
    names = _names(sizes, examples)
    unnamed = [str(symbol) for symbol in dict.fromkeys(symbols) if symbol not in names]
    if unnamed or (symbols and "tokens" not in names.values()):
        shapes = {name: list(nodes[name].meta["val"].shape) for name in examples}
        raise InputError(
            f"`dims` must say which dynamic axis of the program holds the tokens, got none and "
            f"the inputs do not tell: {shapes}. For example dims="
            f"{{{next(iter(examples))!r}: {{0: 'batch', 1: 'tokens'}}}}."
        )
    if not symbols:
        return None
    bounds = {symbol: _bounded(program, symbol, names[symbol]) for symbol in symbols}
    return {
        name: {axis: bounds[symbol] for axis, symbol in axes.items()}
        for name, axes in sizes.items()
    }


def _names(
    sizes: Mapping[str, Mapping[int, Any]], examples: Mapping[str, Tensor]
) -> dict[Any, str]:
    suggested = {
        symbol: suggested_axes(name, examples)[axis]
        for name, axes in sizes.items()
        for axis, symbol in axes.items()
        if axis in suggested_axes(name, examples)
    }
    if "tokens" in suggested.values():
        return suggested
    symbols = list(dict.fromkeys(symbol for axes in sizes.values() for symbol in axes.values()))
    first = {axes[0] for axes in sizes.values() if 0 in axes}
    others = [symbol for symbol in symbols if symbol not in first]
    if len(first) <= 1 and len(others) == 1:
        return {**dict.fromkeys(first, "batch"), others[0]: "tokens"}
    return {}


def _bounded(program: ExportedProgram, symbol: Any, name: str) -> str:
    """`name` with the bounds that the program has for `symbol`.

    torch traces with at least two of everything, which is no bound of the program.
    """
    allowed = program.range_constraints.get(symbol)
    if allowed is None:
        return name
    low = int(allowed.lower) if allowed.lower > 2 else 1
    high = int(allowed.upper) if allowed.upper < 2**31 else None
    return bounded(name, Limits(low, high))
