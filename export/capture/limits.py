"""Bounds on sizes that the code of a target has: a table of positions, an assertion.

torch.export refuses a dim that the code does not take at every size and says which sizes it takes.
Where the target itself, in eager torch, raises for a size beyond, the bound belongs to the target,
and it is traced again with it. Where the target goes on there, it goes another way than the trace:
that is refused, with the dims to write if those sizes alone are meant. A table that longer calls
make larger ends, for a graph, where it ended when it was given.

An embedding of positions is looked up without a word about the rows it has; they are counted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import replace

import torch
from torch import SymInt, Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from causal_attn.errors import InputError
from causal_attn.export.capture.of_sizes import OfSizes
from causal_attn.export.dims import Limits, bounded
from causal_attn.export.eager import as_written
from causal_attn.export.one_run import evaluating, run_once, unchanged
from causal_attn.export.target import Target, resized, size_of

__all__ = ["advised_dims", "table_end", "with_limits"]

_BOUND = re.compile(r"^\s*(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)$", re.MULTILINE)
_FIXED = re.compile(r"You marked (\w+) as dynamic but your code specialized it")
_VIOLATED = re.compile(r"Constraints violated \(([\w, ]+)\)")
_GUARD = re.compile(
    r"^\s*- Not all values of .* satisfy the generated guard (.*)\.$", re.MULTILINE
)
_aten = torch.ops.aten


def with_limits(target: Target, text: str, given: Target) -> Target | None:
    """`target` as it may be traced after torch refused it; ``None``: it may not.

    Dims that only the names of inputs suggest become fixed sizes. An example that is as long as a
    table, which torch takes for the table's own length, becomes a shorter one.

    Args:
        target: What was refused.
        text: torch's words.
        given: `target` as the caller gave it.
    """
    violated = _VIOLATED.search(text)
    if violated is None:
        return None
    dims = set(violated[1].split(", "))
    if target.suggested and (others := dims - {"tokens"}):
        return replace(target, dims=_without(target, others))
    if fixed := _FIXED.search(text):
        return _shorter(target, fixed[1]) if target.examples is given.examples else None
    found = _asked(text)
    if not found and dims == {"tokens"}:
        return _short_of_the_end(target, text)
    if set(found) != dims:
        return None
    if any(dim in target.limits or not _is_own(target, dim, found[dim]) for dim in dims):
        return None
    return replace(target, limits={**target.limits, **found})


def advised_dims(target: Target, text: str) -> dict[str, tuple[str | None, ...]]:
    """What a caller may write for `dims` who means only the sizes of which torch speaks in `text`.

    Empty if they are no range.
    """
    found = _asked(text)
    return {
        name: tuple(
            bounded(dim, found.get(dim, Limits())) if dim is not None else None
            for dim in map(axes.get, range(target.examples[name].dim()))
        )
        for name, axes in target.dims.items()
        if not found.keys().isdisjoint(axes.values())
    }


def table_end(program: ExportedProgram, size: SymInt) -> int | None:
    """How large `size` may be before a lookup in a fixed table leaves it; ``None``: no end.

    Only lookups whose index follows from that one size, such as an embedding of ``arange(t)``.
    """
    symbol = size.node.expr
    ends = []
    for table, axis, index in _lookups(program):
        rows = table.meta["val"].shape[axis]
        found = OfSizes.find(program, index)
        if found is None or found.symbols != {symbol} or not isinstance(rows, int):
            continue

        def is_inside(length: int, found: OfSizes = found, rows: int = rows) -> bool:
            places = found.run({symbol: length})
            return places is not None and -rows <= places.min() and places.max() < rows

        if is_inside(1) and not is_inside(2 * rows + 1):
            low, high = 1, 2 * rows + 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if is_inside(middle) else (low, middle)
            ends.append(low)
    return min(ends, default=None)


def _lookups(program: ExportedProgram) -> Iterator[tuple[Node, int, Node]]:
    """Table, axis and index of every lookup."""
    for node in program.graph.find_nodes(op="call_function", target=_aten.embedding.default):
        yield node.args[0], 0, node.args[1]
    for node in program.graph.find_nodes(op="call_function", target=_aten.index_select.default):
        yield node.args[0], node.args[1], node.args[2]
    for node in program.graph.find_nodes(op="call_function", target=_aten.index.Tensor):
        for axis, index in enumerate(node.args[1]):
            if index is not None and index.meta["val"].dtype is not torch.bool:
                yield node.args[0], axis, index


def _asked(text: str) -> dict[str, Limits]:
    return {
        dim: Limits(int(low or 1), int(high) if high else None)
        for dim, low, high in _BOUND.findall(text)
    }


def _is_own(target: Target, dim: str, limits: Limits) -> bool:
    """Whether the target raises for every size just outside `limits`, or enlarges its tables."""
    beyond = [limits.low - 1] if limits.low > 1 else []
    beyond += [limits.high + 1] if limits.high is not None else []
    return all(_raises(target, dim, size) or _grows(target, dim, size) for size in beyond)


def _raises(target: Target, dim: str, size: int) -> bool:
    try:
        run_once(target.module, target.arguments(resized(target, dim, size)))
    except InputError:
        return True
    return False


def _grows(target: Target, dim: str, size: int) -> bool:
    """Whether a call with `dim` of `size` leaves a buffer or tensor larger than it was."""
    module = target.module
    inputs = target.arguments(resized(target, dim, size))
    before = _elements(module)
    with evaluating(module), unchanged(module), torch.no_grad(), as_written():
        module(**inputs)
        after = _elements(module)
    return any(after.get(name, 0) > held for name, held in before.items())


def _elements(module: nn.Module) -> dict[str, int]:
    """How many there are in every tensor that `module` holds and does not learn."""
    return {
        f"{path}.{name}": value.numel()
        for path, child in module.named_modules()
        for name, value in {**vars(child), **dict(child.named_buffers(recurse=False))}.items()
        if isinstance(value, Tensor)
    }


def _without(target: Target, dims: Set[str]) -> dict[str, dict[int, str]]:
    return {
        name: {axis: dim for axis, dim in axes.items() if dim not in dims}
        for name, axes in target.dims.items()
    }


def _shorter(target: Target, dim: str) -> Target | None:
    size = size_of(target, dim)
    if size is None or size < 4:
        return None
    return replace(target, examples=resized(target, dim, size - 1))


def _short_of_the_end(target: Target, text: str) -> Target | None:
    """`target` traced to one token below its limit, where that alone is another branch to torch.

    ``mask[:t, :t]`` of a whole buffer has other strides than that of a part.
    """
    high = target.limits.get("tokens", Limits()).high
    ends = [guard for guard in _GUARD.findall(text) if guard.endswith(f" != {high}")]
    if high is None or high < 4 or len(ends) != len(_GUARD.findall(text)) or not ends:
        return None
    size = size_of(target, "tokens")
    examples = resized(target, "tokens", high - 1) if size == high else target.examples
    return replace(target, examples=examples, untraced=(high,))
