"""Prove that the sequences of a batch are independent: none reaches a row of another.

The same rules follow sequences in place of positions, so that nothing is sampled: a sum over the
batch, a first sequence that is added to all, a table that is indexed across sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence.calls import Sizes, asked_calls
from causal_attn.verify.influence.claim import Claim
from causal_attn.verify.influence.feed import bind
from causal_attn.verify.influence.one_call import Question, examine, output_values
from causal_attn.verify.influence.proof import ask
from causal_attn.verify.influence.result import Leak
from causal_attn.verify.influence.rows import Rows, rows_that_grow
from causal_attn.verify.influence.tensor import Tensor

__all__ = ["BATCHES", "Independence", "prove_independent"]

BATCHES = (2, 3, 5)
"""Sequences in a batch, unless told otherwise."""

_SOME_TOKENS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Independence:
    """Whether sequences reach each other.

    Attributes:
        batches: Numbers of sequences that were examined; none where no output grows with them.
        leak: A sequence that reaches another, in ``query`` and ``position``, and its path.
        undecided: What could not be followed.
    """

    batches: tuple[int, ...]
    leak: Leak | None = None
    undecided: tuple[str, ...] = ()


def prove_independent(
    model: ModelProto,
    claim: Claim,
    *,
    batches: Sequence[int] = BATCHES,
    base_dir: str | Path | None = None,
) -> Independence:
    """Follow every sequence through the graph, with one token and with a few, past and without.

    Args:
        model: The graph.
        claim: Its inputs, and `Claim.batch`.
        batches: Numbers of sequences, at least two of them different, so that what grows shows.
        base_dir: Folder of the model's file.

    Raises:
        InputError: As for `causal_attn.verify.influence.prove`.
        PackageError: Likewise.
    """
    question = ask(model, claim, base_dir, examined=False)
    asked = asked_calls(question.program.graph, claim)
    few = max((tokens for tokens, _ in asked if tokens <= _SOME_TOKENS), default=asked[0][0])
    calls = [call for call in asked if call[0] in (few, asked[0][0])]
    questions = {count: _of(question, claim, count) for count in batches}
    sizes = tuple(count for count in batches if _fits(questions[count], calls))
    rows = _rows({count: questions[count] for count in sizes}, calls[-1])
    if not rows:
        return Independence(batches=())
    undecided: dict[str, None] = {}
    for count in sizes:
        for call in calls:
            proof = examine(replace(questions[count], others=rows), *call, measured=False)
            if proof.verdict is Verdict.NOT_CAUSAL:
                return Independence(batches=sizes, leak=proof.leak)
            undecided |= dict.fromkeys(proof.undecided)
    return Independence(batches=sizes, undecided=tuple(undecided))


def _of(question: Question, claim: Claim, count: int) -> Question:
    axes = replace(question.axes, batch=dict(claim.batch), sequences=count)
    return replace(question, axes=axes, outputs={}, carried={})


def _fits(question: Question, calls: Sequence[Sizes]) -> bool:
    graph = question.program.graph
    return all(bind(graph, question.axes, *call, question.dims) is not None for call in calls)


def _rows(questions: dict[int, Question], call: Sizes) -> dict[str, Rows | None]:
    """For each output that grows with the batch, how many rows it has at each size."""
    shapes: dict[str, dict[Sizes, tuple[int, ...]]] = {}
    for count, question in questions.items():
        for name, value in output_values(question, *call).items():
            if isinstance(value, Tensor):
                shapes.setdefault(name, {})[count, 0] = value.shape
    grown = {name: rows_that_grow(seen) for name, seen in shapes.items()}
    return {name: rows for name, rows in grown.items() if rows is not None}
