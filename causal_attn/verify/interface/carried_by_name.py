"""What calls of a model of others hand on: caches that grow, states, what an encoder left.

Names and dims say which output continues which input. What pairs is handed on; what no output
continues is the same in every call; both are said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.verify.interface.naming import (
    Dims,
    belongs_to_cache,
    continues_cache,
    is_encoders,
    is_state,
    pair_some,
    same_state,
)

__all__ = ["Carried", "carried_cache", "growing_inputs"]


@dataclass(frozen=True, kw_only=True)
class Carried:
    """The cache of a model of others.

    Attributes:
        layout: What is handed on; ``None`` where part of what grows cannot be.
        outputs: All outputs of the model; those that continue a state have its dims.
        notes: What is not handed on, a sentence each.
    """

    layout: CacheLayout | None
    outputs: tuple[TensorContract, ...]
    notes: tuple[str, ...] = ()


def growing_inputs(
    caches: Mapping[str, int], inputs: Mapping[str, Dims], outputs: Mapping[str, Dims]
) -> dict[str, int]:
    """Those of `caches`, ``name -> axis``, that hold the decoder's past, one row a position.

    An encoder's are of other positions. A state has the dims of the output that continues it: it
    is replaced, whatever its name. An input that no output continues, beside others that are, is
    none of this call's past.
    """
    own = {name: axis for name, axis in caches.items() if not is_encoders(name, inputs[name])}
    own = own or dict(caches)
    pairs = dict(pair_some(own, outputs))
    called = [name for name in outputs if is_state(name)]
    kept = {
        name: axis
        for name, axis in own.items()
        if not any(
            _is_replaced(inputs[name], outputs[output], axis)
            for output in ([pairs[name]] if name in pairs else called)
        )
    }
    continued = {name: axis for name, axis in kept.items() if name in pairs}
    return continued or kept


def _is_replaced(given: Dims, result: Dims, axis: int) -> bool:
    """Whether a call leaves a tensor as long as it was, by its dims."""
    return (
        len(given) == len(result)
        and isinstance(given[axis], int)
        and given[axis:] == result[axis:]
    )


def carried_cache(
    past: Mapping[str, int],
    inputs: Sequence[TensorContract],
    outputs: Sequence[TensorContract],
    *,
    tokens: str,
    others: Collection[str],
) -> Carried:
    """The cache of a graph whose inputs are known.

    Args:
        past: Inputs that grow, ``name -> axis``.
        inputs: Of the graph.
        outputs: Of the graph, whose dims need not be known.
        tokens: Name of the dim of new tokens.
        others: Inputs that are no state: tokens, masks, positions.
    """
    given = {tensor.name: tensor for tensor in inputs}
    pairs = dict(pair_some(past, {tensor.name: list(tensor.dims) for tensor in outputs}))
    entries = [
        CacheEntry(input=name, output=output, kind=EntryKind.GROWING, axis=past[name])
        for name, output in pairs.items()
    ]
    free = [tensor for tensor in inputs if tensor.name not in {*past, *others}]
    states = _states(free, [t for t in outputs if t.name not in pairs.values()], tokens)
    entries += [
        CacheEntry(input=name, output=output, kind=EntryKind.REPLACED)
        for name, output in states.items()
    ]
    read = [
        tensor.name
        for tensor in free
        if tensor.name not in states
        and (belongs_to_cache(tensor.name) or is_encoders(tensor.name, tensor.dims))
    ]
    dims = {output: given[name].dims for name, output in states.items()}
    returned = tuple(
        replace(tensor, dims=dims[tensor.name]) if tensor.name in dims else tensor
        for tensor in outputs
    )
    notes = [f"input {name!r}: the same in every call, no output continues it" for name in read]
    unpaired = sorted(set(past) - set(pairs))
    if unpaired:
        return Carried(
            layout=None,
            outputs=returned,
            notes=(*notes, f"decode: no output continues the past {_listed(unpaired)}"),
        )
    if not entries:
        return Carried(layout=None, outputs=returned, notes=tuple(notes))
    layout = CacheLayout(entries=tuple(entries))
    fault = layout.fault(inputs, returned, tokens)
    if fault is not None:
        return Carried(layout=None, outputs=returned, notes=(*notes, f"decode: {fault}"))
    notes += [
        f"output {output!r}: a state after all tokens, handed on as {name!r}; it has no rows"
        for name, output in states.items()
    ]
    return Carried(layout=layout, outputs=returned, notes=tuple(notes))


def _states(
    inputs: Sequence[TensorContract], outputs: Sequence[TensorContract], tokens: str
) -> dict[str, str]:
    """Inputs to the outputs of the same shape that continue them.

    Called alike but for words such as ``past`` and ``new``, or called states and the only ones of
    their shape on both sides; several of one shape go together in their order.
    """
    pairs: dict[str, str] = {}
    left = list(outputs)
    for tensor in inputs:
        alike = [
            other
            for other in left
            if same_state(tensor.name, other.name) and _same_shape(tensor, other, tokens)
        ]
        if len(alike) == 1:
            pairs[tensor.name] = alike[0].name
            left.remove(alike[0])
    called = [
        tensor
        for tensor in inputs
        if tensor.name not in pairs
        and is_state(tensor.name)
        and not is_encoders(tensor.name, tensor.dims)
    ]
    for shape in dict.fromkeys((tensor.dtype, tensor.dims) for tensor in called):
        group = [tensor for tensor in called if (tensor.dtype, tensor.dims) == shape]
        fitting = [
            other
            for other in left
            if (is_state(other.name) or continues_cache(other.name))
            and _same_shape(group[0], other, tokens)
        ]
        if len(fitting) == len(group):
            pairs |= {one.name: other.name for one, other in zip(group, fitting, strict=True)}
            left = [other for other in left if other not in fitting]
    return pairs


def _same_shape(given: TensorContract, result: TensorContract, tokens: str) -> bool:
    """Whether an output may have the shape of an input: sizes are equal where both are known."""
    if given.dtype != result.dtype or len(given.dims) != len(result.dims) or not given.dims:
        return False
    return all(
        before == after
        or (not (isinstance(before, int) and isinstance(after, int)) and _free(after, tokens))
        for before, after in zip(given.dims, result.dims, strict=True)
    )


def _free(dim: str | int, tokens: str) -> bool:
    return isinstance(dim, int) or tokens not in DimExpression.parse(dim).names


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
