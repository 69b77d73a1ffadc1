"""Prove that a graph is causal, or find the position of the future that reaches an output."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from causal_attn.errors import InputError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence.calls import Sizes, asked_calls, every_length, further_calls
from causal_attn.verify.influence.claim import Claim
from causal_attn.verify.influence.crossed import MOST_DRAWN
from causal_attn.verify.influence.every import EveryLength, prove_every_length
from causal_attn.verify.influence.length import LengthWatch
from causal_attn.verify.influence.one_call import (
    Question,
    examine,
    output_values,
    row_positions,
)
from causal_attn.verify.influence.program import Program, read_program
from causal_attn.verify.influence.result import Leak, Proof
from causal_attn.verify.influence.rows import Rows, rows_that_grow
from causal_attn.verify.influence.tensor import Tensor

__all__ = ["ask", "prove"]

_FAR_BELOW = 1e-6
"""Of a bound on scores: what sines and cosines reach at other lengths only is far less."""


def prove(model: ModelProto, claim: Claim, *, base_dir: str | Path | None = None) -> Proof:
    """Follow every input position through the graph, at each length, without running it.

    Nothing is sampled, and the claim is about finite data. Weights are read only where a finite
    mask makes the size of scores count.

    Args:
        model: The graph. External data is looked at in `base_dir`, for masks only.
        claim: What is to be proved of it.
        base_dir: Folder of the model's file.

    Returns:
        The verdict with its reasons: `Proof`.

    Raises:
        InputError: A name, axis or length of `claim` is not one of this graph.
        PackageError: The model cannot be read, or an output has no such axis.
    """
    question = ask(model, claim, base_dir)
    watch = LengthWatch(min(claim.pasts))
    question = replace(question, others=_others(question, claim), watch=watch)
    found = prove_every_length(question, tuple(claim.pasts))
    results, asked, left = _examine_all(question, claim, proved=not found.reason)
    worst = max(results, key=lambda result: _SEVERITY.index(result.verdict))
    largest = results[asked - 1]
    shown = worst if worst.leak is not None and largest.leak is None else largest
    bounds = [
        result.score_bound
        for result in results
        if result.score_bound is not None and result.verdict is worst.verdict
    ]
    scores = [result.largest_score for result in results if result.largest_score is not None]
    undecided = dict.fromkeys(name for result in results for name in result.undecided)
    verdict = worst.verdict
    conditions: tuple[str, ...] = ()
    if verdict in _HOLDS:
        conditions = _conditions(question, claim)
        verdict = Verdict.CONDITIONAL if conditions else verdict
    largest_score = max(scores, default=None) if worst.verdict is Verdict.CAUSAL else None
    score_bound = min(bounds, default=None)
    every = None
    if verdict in _HOLDS and not conditions:
        every = _other_lengths(found, verdict, largest_score, score_bound)
    return Proof(
        verdict=verdict,
        outputs=shown.outputs,
        calls=tuple(call for result in results for call in result.calls),
        left=tuple(left),
        leak=_drawn(worst.leak, results),
        undecided=tuple(undecided) if worst.verdict is Verdict.UNDECIDED else (),
        score_bound=score_bound,
        largest_score=largest_score,
        every_length=every == "",
        other_lengths=every or "",
        conditions=conditions,
        length_at=tuple(watch.nodes),
        notes=tuple(_notes(question, shown.outputs, shown.calls[0])),
    )


def _other_lengths(
    found: EveryLength, verdict: Verdict, largest: float | None, bound: float | None
) -> str:
    """Why the graph may not be causal at lengths that were not examined; empty: it is."""
    if not found.finite:
        return found.reason
    small = largest is not None and bound is not None and largest <= bound * _FAR_BELOW
    if verdict is Verdict.CAUSAL and not small:
        return "its scores are not far below the numbers that its masks add"
    return "scores may grow with the length, up to where masks hide nothing" * found.grows


def _drawn(leak: Leak | None, results: Sequence[Proof]) -> Leak | None:
    """`leak` with its mask as the largest call shows it that can be drawn whole."""
    if leak is None:
        return None
    alike = [
        item.crossed
        for result in results
        if (item := result.leak) is not None and item.crossed_at == leak.crossed_at
    ]
    whole = [it for it in alike if it is not None and it.tokens + it.past <= MOST_DRAWN]
    largest = max(whole, key=lambda it: (it.tokens, -it.past), default=leak.crossed)
    return replace(leak, crossed=largest)


def ask(
    model: ModelProto, claim: Claim, base_dir: str | Path | None, *, examined: bool = True
) -> Question:
    """The question that `claim` asks of a model; what it raises is what `prove` raises.

    Args:
        model: As for `prove`.
        claim: Likewise.
        base_dir: Likewise.
        examined: Whether the question is about the claim's outputs; if not, about none yet.
    """
    program = read_program(model, Path(base_dir) if base_dir is not None else None)
    _check_inputs(program, claim)
    return Question(
        program=program,
        axes=claim.axes,
        outputs=_chosen_outputs(program, claim) if examined else {},
        dims=dict(claim.dims),
        known=dict(claim.known),
    )


def _others(question: Question, claim: Claim) -> dict[str, Rows | None]:
    """Rows of the outputs in `claim.others` that grow with the tokens, by their shapes."""
    graph = question.program.graph
    names = [name for name in claim.others if name not in question.outputs]
    if not names:
        return {}
    shapes: dict[str, dict[Sizes, tuple[int, ...]]] = {name: {} for name in names}
    unknown = set()
    for call in (*asked_calls(graph, claim), *every_length(graph, claim)):
        for name, value in output_values(question, *call).items():
            if name in shapes and isinstance(value, Tensor):
                shapes[name][call] = value.shape
            elif name in shapes:
                unknown.add(name)
    grown = {name: rows_that_grow(shapes[name]) for name in names if name not in unknown}
    return dict.fromkeys(unknown) | {name: rows for name, rows in grown.items() if rows}


def _examine_all(
    question: Question, claim: Claim, *, proved: bool
) -> tuple[list[Proof], int, list[Sizes]]:
    """A proof of each call, how many were asked for, and the calls that no time was left for.

    What is proved for every length and past is examined at every length, as a second opinion, but
    behind the pasts that were asked for alone: they take most of the time.
    """
    graph = question.program.graph
    asked, further = asked_calls(graph, claim), further_calls(graph, claim)
    if proved:
        further = [call for call in further if call[1] == min(claim.pasts)]
    started = time.monotonic()
    results: list[Proof] = []
    for at, call in enumerate((*asked, *further)):
        if at >= len(asked):
            if any(result.verdict is Verdict.NOT_CAUSAL for result in results):
                break
            if time.monotonic() - started > claim.seconds:
                return results, len(asked), further[at - len(asked) :]
        # Where one length needs the size of scores, all do.
        measured = bool(results) and results[-1].largest_score is not None
        results.append(examine(question, *call, measured=measured))
    return results, len(asked), []


_SEVERITY = (Verdict.CAUSAL, Verdict.CONDITIONAL, Verdict.UNDECIDED, Verdict.NOT_CAUSAL)
_HOLDS = (Verdict.CAUSAL, Verdict.CONDITIONAL)


def _conditions(question: Question, claim: Claim) -> tuple[str, ...]:
    """Those of `claim.conditions` without which nothing is proved: their inputs are data then.

    Inputs that matter only together are all named.
    """
    calls = asked_calls(question.program.graph, claim)

    def holds(names: Collection[str]) -> bool:
        known = {name: value for name, value in question.known.items() if name not in names}
        freed = replace(question, known=known, carried={}, watch=None)
        return all(examine(freed, *call, measured=False).verdict in _HOLDS for call in calls)

    if not claim.conditions or holds(claim.conditions):
        return ()
    alone = [words for name, words in claim.conditions.items() if not holds([name])]
    return tuple(alone or claim.conditions.values())


def _notes(
    question: Question, matrices: Mapping[str, NDArray[np.bool_]], call: tuple[int, int]
) -> list[str]:
    notes = []
    alone = True
    for name, matrix in matrices.items():
        rows = row_positions(matrix.shape[0], *call)
        earlier = np.arange(matrix.shape[1]) < rows[:, None]
        seen = (matrix & earlier).sum(1)
        alone &= bool(earlier.any()) and not seen.any()
        if not matrix.any():
            notes.append(f"No position reaches {name!r}.")
        elif seen.any() and (earlier & ~matrix).any() and len(rows) == call[0]:
            notes.append(
                f"Rows of {name!r} are reached by at most {seen.max()} of the positions before "
                "them, not by all: a window, or rows that do not mix."
            )
    if alone:
        notes.append("No output row is reached by an earlier position: the past does not matter.")
    read = {item for node in question.program.graph.nodes for item in node.inputs}
    for name in (*question.axes.tokens, *question.axes.past, *question.axes.total):
        if name not in read and name not in question.program.graph.outputs:
            notes.append(f"Input {name!r} is read by no node.")
    if question.known:
        notes.append(f"The values of {sorted(question.known)} are taken as fixed.")
    return notes


def _check_inputs(program: Program, claim: Claim) -> None:
    graph = program.graph
    if not claim.tokens:
        raise InputError(
            "`tokens` must name an input and its token axis, got none. Give one of "
            f"{list(graph.inputs)}."
        )
    if free := sorted(set(claim.conditions) - set(claim.known)):
        raise InputError(
            f"`conditions` must be about inputs in `known`, got {free}. Give their values there."
        )
    known = dict.fromkeys(claim.known, 0)
    named = {"tokens": claim.tokens, "past": claim.past, "total": claim.total, "known": known}
    if absent := sorted(set(claim.others) - set(graph.outputs)):
        raise InputError(
            f"`others` must name outputs of the graph, got {absent}. They are "
            f"{list(graph.outputs)}."
        )
    for argument, names in named.items():
        for name, axis in names.items():
            if name not in graph.inputs:
                raise InputError(
                    f"`{argument}` must name inputs of the graph, got {name!r}. They are "
                    f"{list(graph.inputs)}."
                )
            rank = len(graph.shapes.get(name, ()))
            if argument != "known" and not -rank <= axis < rank:
                raise InputError(f"`{argument}[{name!r}]` must be an axis of {rank}, got {axis}.")


def _chosen_outputs(program: Program, claim: Claim) -> dict[str, int]:
    graph, outputs = program.graph, claim.outputs
    if outputs is not None:
        for name in outputs:
            if name not in graph.outputs:
                raise InputError(
                    f"`outputs` must name outputs of the graph, got {name!r}. They are "
                    f"{list(graph.outputs)}."
                )
        if not outputs:
            raise InputError("`outputs` must name an output, got none.")
        return dict(outputs)
    named = {graph.shapes[name][axis] for name, axis in claim.tokens.items()}
    named = {dim for dim in named if isinstance(dim, str) and dim}
    chosen = {}
    for name in graph.outputs:
        places = [at for at, dim in enumerate(graph.shapes.get(name, ())) if dim in named]
        if places:
            chosen[name] = places[0]
    if not chosen:
        raise InputError(
            "`outputs` must be given: no output has an axis with the name of a token axis "
            f"{sorted(str(dim) for dim in named)}. The outputs are {list(graph.outputs)}."
        )
    return chosen
