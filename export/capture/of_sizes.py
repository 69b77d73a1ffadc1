"""Parts of a traced program that are functions of sizes alone, run at sizes of one's choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Node, map_arg

__all__ = ["OfSizes"]


@dataclass(frozen=True, kw_only=True)
class OfSizes:
    """A value that follows from the sizes of inputs and from constants.

    Attributes:
        nodes: What it is computed by, in order, itself last.
        constants: Values of those that are buffers, parameters or constants of the program.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[Node, Tensor]

    @classmethod
    def find(cls, program: ExportedProgram, node: Node) -> OfSizes | None:
        """What `node` is; ``None``: it is no function of sizes that can be run again.

        It reads an input, draws random numbers, or writes to what it has not made itself.
        """
        nodes = tuple(_ancestors(node))
        constants = {}
        for part in nodes:
            if part.op == "placeholder":
                constant = _constant(program, part)
                if constant is None:
                    return None
                constants[part] = constant
            elif part.op != "call_function" or _is_impure(part):
                return None
        return cls(nodes=nodes, constants=constants)

    @property
    def symbols(self) -> set[sympy.Symbol]:
        """The sizes it follows from."""
        values = (node.meta.get("val") for node in self.nodes)
        return {
            symbol
            for value in values
            if isinstance(value, SymInt)
            for symbol in value.node.expr.free_symbols
        }

    def run(self, sizes: Mapping[sympy.Symbol, int]) -> Any:
        """Its value at `sizes`; ``None``: it does not run there."""
        values: dict[Node, Any] = dict(self.constants)
        for node in self.nodes:
            size = node.meta.get("val")
            if isinstance(size, SymInt):
                values[node] = int(size.node.expr.subs(sizes))
            elif node not in self.constants:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                try:
                    values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
                except (RuntimeError, IndexError, TypeError, ValueError):
                    return None
        return values[self.nodes[-1]]


def _ancestors(node: Node) -> Iterator[Node]:
    """What `node` is computed from, in the order of the graph, down to constants and sizes."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found.add(part)
            if not isinstance(part.meta.get("val"), SymInt):
                waiting += part.all_input_nodes
    return (part for part in node.graph.nodes if part in found)


def _constant(program: ExportedProgram, node: Node) -> Tensor | None:
    signature = program.graph_signature
    name = str(node.target)
    name = (
        signature.inputs_to_buffers.get(name)
        or signature.inputs_to_parameters.get(name)
        or signature.inputs_to_lifted_tensor_constants.get(name, "")
    )
    value = program.state_dict.get(name, program.constants.get(name))
    return value if isinstance(value, Tensor) else None


def _is_impure(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    # masked_fill_ and the like write to their first argument.
    written = node.target._schema.is_mutable and not _is_made(node.args[0])
    return written or torch.Tag.nondeterministic_seeded in node.target.tags


def _is_made(value: object) -> bool:
    """Whether `value` is new memory that nothing else reads.

    Of a view, a constant and what is read elsewhere too the order of reads and writes matters.
    """
    if not isinstance(value, Node) or len(value.users) > 1:
        return False
    schema = getattr(value.target, "_schema", None)
    return schema is not None and all(result.alias_info is None for result in schema.returns)
