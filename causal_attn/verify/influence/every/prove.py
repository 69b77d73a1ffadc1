"""The proof for every length: inputs of any length, the nodes in order, the outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from causal_attn.verify.influence.every import (  # noqa: F401  importing a module registers its rules
    arithmetic,
    attending,
    choosing,
    mapping,
    mixing,
    moving,
    regrouping,
    shaping,
)
from causal_attn.verify.influence.every.affine import Affine, Every
from causal_attn.verify.influence.every.mapped import lowered
from causal_attn.verify.influence.every.run import LONGEST, PAST, RULES, TOKENS, Call, Run
from causal_attn.verify.influence.every.symbolic import Axis, Factor, Index, Symbolic, Unclear
from causal_attn.verify.influence.feed import Known, bind
from causal_attn.verify.influence.graph import Graph, Node, Reference, Stored
from causal_attn.verify.influence.one_call import Question

__all__ = ["EveryLength", "prove_every_length"]

_SIZES = (1, 2, 3, 7, 34, 65, 257)
"""Lengths and pasts at which the values of a fixed input must follow its formula."""


_FAR = 100_003
"""And one that no table of values has."""


_HELD = 32.0
"""Bits of a number of positions as a float, some times over."""


@dataclass(frozen=True, slots=True)
class EveryLength:
    """Whether a graph is causal at every length.

    Attributes:
        reason: Why it is not known; empty: it is.
        finite: It is, as long as masks that are finite numbers hide.
        grows: The size of scores may follow the length.
    """

    reason: str = ""
    finite: bool = False
    grows: bool = False


def prove_every_length(question: Question, pasts: tuple[int, ...]) -> EveryLength:
    """Whether every row of every output is reached by positions up to its own, at any length.

    Args:
        question: What is asked.
        pasts: Sizes of the past that are examined: one, if there is no other.
    """
    graph = question.program.graph
    past = PAST if len(set(pasts)) > 1 else Affine(pasts[0])
    run = Run(past, min(pasts))
    if question.others:
        return EveryLength(f"the rows of {next(iter(question.others))!r} are not the tokens")
    values: dict[str, Symbolic | Unclear] = {}
    try:
        values.update(_inputs(run, question, pasts))
    except Unclear as reason:
        return EveryLength(str(reason))
    for name, stored in graph.stored.items():
        if name not in values:
            values[name] = _stored(run, stored)
    for node in graph.nodes:
        values.update(_outputs(run, question, node, values))
    for name, axis in question.outputs.items():
        if why := _beyond_its_row(run, values[name], axis):
            return EveryLength(f"output {name!r}: {why}")
    return EveryLength(finite=run.finite, grows=run.grows)


def _stored(run: Run, stored: Stored) -> Symbolic:
    if stored.values is not None and stored.values.size <= 64:
        return run.constant(np.broadcast_to(stored.values, stored.shape))
    axes = tuple(() if size == 1 else (Factor(Affine(size)),) for size in stored.shape)
    return Symbolic(axes, stored.dtype)


def _outputs(
    run: Run, question: Question, node: Node, values: Mapping[str, Symbolic | Unclear]
) -> dict[str, Symbolic | Unclear]:
    names = [name for name in node.outputs if name]
    given = [values[name] if name else None for name in node.inputs]
    if unclear := next((item for item in given if isinstance(item, Unclear)), None):
        return dict.fromkeys(names, unclear)
    rule = RULES.get((node.domain, node.op))
    known = [item for item in given if not isinstance(item, Unclear)]
    program = question.program
    try:
        _require_plain(run, node, [item for item in known if item is not None])
        if rule is None or (node.domain, node.op, node.overload) in program.functions:
            raise Unclear("it is not followed at every length")
        if any(isinstance(item, Reference | Graph) for item in node.attributes.values()):
            raise Unclear("it has a body")
        opset = program.opsets.get(node.domain, 1)
        made = rule(Call(run, node, known, node.attributes, opset))
        if any(not run.at_most(f.size, Affine(LONGEST)) for item in made for f in item.factors):
            raise Unclear("an axis may be longer than all tokens")
        if len(made) < len(node.outputs):
            raise Unclear("it has more outputs than are followed")
        return {name: value for name, value in zip(node.outputs, made, strict=False) if name}
    except Unclear as reason:
        return dict.fromkeys(names, Unclear(f"{node}: {reason}"))
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        # A node whose inputs do not fit together.
        return dict.fromkeys(names, Unclear(f"{node}: its inputs do not fit ({error})"))


_MASKING = {
    "Add", "Attention", "Cast", "CastLike", "Concat", "Expand", "Identity", "Reshape",
    "Slice", "Softmax", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""What a mask's number may go through."""


def _require_plain(run: Run, node: Node, given: Sequence[Symbolic]) -> None:
    """Refuse what makes of a finite mask something else, or numbers that are none.

    Raises:
        Unclear: It does.
    """
    if node.op not in _MASKING and lowered(run, given):
        raise Unclear("the finite number of a mask goes through it")
    floats = [item for item in node.attributes.values() if isinstance(item, float)]
    if not all(map(math.isfinite, floats)) or node.attributes.get("epsilon", 1.0) <= 0:
        raise Unclear("an attribute lets it make what is no number")


def _beyond_its_row(run: Run, value: Symbolic | Unclear, axis: int) -> str:
    """Why rows of an output may be reached by later positions; empty: they are not."""
    if isinstance(value, Unclear):
        return str(value)
    axis %= len(value.axes)
    own = value.axes[axis]
    if any(f.row is not None for at, other in enumerate(value.axes) if at != axis for f in other):
        return "positions reach it along another axis than its rows"
    if len(own) != 1:
        return "" if not value.of_rows else "its rows are of several heads"
    (factor,) = own
    if factor.row is None or run.at_most(factor.row, run.total - factor.size):
        return ""
    return "its rows may be of later positions than they stand at"


def _inputs(run: Run, question: Question, pasts: tuple[int, ...]) -> dict[str, Symbolic]:
    graph, axes = question.program.graph, question.axes
    calls = [(5, pasts[-1]), (7, pasts[0])]
    bounds = [bind(graph, axes, *call, question.dims) for call in calls]
    if any(bound is None for bound in bounds):
        raise Unclear("its number of tokens is fixed")
    found = {}
    for name in graph.inputs:
        if name in graph.stored and axes.of(name) is None and name not in question.known:
            continue
        if name not in graph.shapes:
            raise Unclear(f"input {name!r} has no shape")
        role = axes.of(name)
        sizes: list[Axis] = []
        for at, dim in enumerate(graph.shapes[name]):
            if role is not None and at == role[1] % len(graph.shapes[name]):
                if isinstance(dim, int):
                    raise Unclear(f"input {name!r} has a fixed number of rows")
                size = {"tokens": TOKENS, "past": run.past, "total": run.total}[role[0]]
                row = run.past if role[0] == "tokens" else Affine()
                sizes.append((Factor(size, row),))
                continue
            if isinstance(dim, str) and not dim.isidentifier():
                raise Unclear(f"input {name!r}: its dim {dim!r} may follow the length")
            known = {
                bound.get(dim, 1) if isinstance(dim, str) else dim for bound in bounds if bound
            }
            if len(known) > 1:
                raise Unclear(f"input {name!r}: its dim {dim!r} follows the length")
            (one,) = known
            sizes.append(() if one == 1 else (Factor(Affine(one)),))
        dtype = graph.dtypes.get(name, np.dtype(np.float32))
        value = Symbolic(tuple(sizes), dtype)
        if name in question.known:
            value = _held(run, name, value, question.known[name], role, pasts)
        found[name] = value
    return found


def _held(
    run: Run,
    name: str,
    value: Symbolic,
    known: Known,
    role: tuple[str, int] | None,
    pasts: tuple[int, ...],
) -> Symbolic:
    """An input whose values are fixed, by the formula that they follow."""
    axis = role[1] % len(value.axes) if role else -1
    sizes = sorted({*pasts, *_SIZES}) if len(set(pasts)) > 1 else [pasts[0]]
    kind = role[0] if role else ""

    def at(tokens: int, past: int) -> Any:
        rows = {"tokens": tokens, "past": past, "total": past + tokens, "": 0}[kind]
        shape = [
            rows if place == axis else own[0].size.fixed or 1 if own else 1
            for place, own in enumerate(value.axes)
        ]
        given = known(tuple(shape), role[1] if role else -1, past) if callable(known) else known
        try:
            full = np.broadcast_to(np.asarray(given), shape)
        except ValueError:
            raise Unclear(f"input {name!r} has values for some lengths only") from None
        moved = np.moveaxis(full, axis, 0) if axis >= 0 else full[None]
        rest = moved.reshape(len(moved), -1)
        if rest.size and (rest != rest[:, :1]).any():
            raise Unclear(f"input {name!r} has values that differ along other axes")
        return rest[:, 0] if rest.size else np.zeros(0)

    base = at(2, pasts[0]) if kind != "past" else np.zeros(1)
    if kind == "past" or not np.array_equal(base, base.astype(np.int64)):
        raise Unclear(f"input {name!r} has values that follow no formula")
    start, step = int(base[0]), int(base[1] - base[0]) if len(base) > 1 else 0
    by_tokens = int(at(3, pasts[0])[0]) - start
    by_past = int(at(2, pasts[0] + 1)[0]) - start if len(sizes) > 1 else 0
    if not np.can_cast(np.int32, value.dtype):
        raise Unclear(f"input {name!r} has places of {value.dtype}")
    far = [(_FAR, pasts[0]), *([(2, _FAR)] if len(sizes) > 1 else [])]
    for tokens, past in (*product(_SIZES, sizes), *far):
        seen = at(tokens, past)
        first = start + by_tokens * (tokens - 2) + by_past * (past - pasts[0])
        if not np.array_equal(seen, first + step * np.arange(len(seen))):
            raise Unclear(f"input {name!r} has values that follow no formula")
    formula = (
        Affine(start - 2 * by_tokens)
        + TOKENS.times(by_tokens)
        + (run.past - pasts[0]).times(by_past)
    )
    own = [place for place, factors in enumerate(value.axes) if factors]
    rows = own.index(axis) if axis >= 0 else None
    bare = tuple(tuple(Factor(f.size) for f in factors) for factors in value.axes)

    def read(index: Index) -> Any:
        place = Affine() if rows is None else index[rows].times(step)
        return ((Every(()), formula + place),)

    if value.dtype.kind not in "iub":
        return replace(value, axes=bare, sized=bool(formula.terms or step), reach=_HELD)
    return replace(value, axes=bare, read=read)
