"""Graphs that return nothing along the tokens: the last token's logits, a mean over all tokens.

Such a result is of all tokens given, and no position of it could see a later one. What can be
said is whether the rows that it is picked from, or summed over, are causal among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence.calls import Sizes, asked_calls
from causal_attn.verify.influence.claim import Claim
from causal_attn.verify.influence.graph import Graph
from causal_attn.verify.influence.one_call import examine, values_of
from causal_attn.verify.influence.proof import ask
from causal_attn.verify.influence.result import Proof
from causal_attn.verify.influence.tensor import Tensor, Value

__all__ = ["prove_selected"]

_OF_SIZES = ("Shape", "Size")
"""Operators whose results are of sizes alone."""


def prove_selected(
    model: ModelProto, claim: Claim, *, base_dir: str | Path | None = None
) -> Proof:
    """The proof of a graph whose outputs have no rows: of all tokens, whatever comes before.

    Args:
        model: As for `causal_attn.verify.influence.prove`.
        claim: Likewise; its `outputs` are not looked at.
        base_dir: Folder of the model's file.

    Raises:
        InputError: A name, axis or length of `claim` is not one of this graph.
        PackageError: The model cannot be read.
    """
    question = ask(model, claim, base_dir, examined=False)
    graph = question.program.graph
    calls = asked_calls(graph, claim)
    rows: dict[str, int] = {}
    if len(two := [call for call in calls if call[0] > 1][-3:-1]) == 2:
        rows = _last_rows(graph, two, [values_of(question, *call) for call in two])
    note = "what it is computed from has no rows either"
    if rows:
        question = replace(question, outputs=rows)
        results = [examine(question, *call, measured=False) for call in calls]
        wrong = [result for result in results if result.verdict is not Verdict.CAUSAL]
        names = ", ".join(map(repr, rows))
        if not wrong:
            note = f"the rows of {names}, which it is computed from, are causal"
        elif wrong[0].leak is not None:
            note = f"the rows that it is computed from are not causal: {wrong[0].leak}"
        else:
            note = f"whether the rows of {names}, which it is computed from, are causal is open"
    return Proof(verdict=Verdict.OF_ALL_TOKENS, outputs={}, calls=tuple(calls), notes=(note,))


def _last_rows(
    graph: Graph, calls: list[Sizes], values: list[Mapping[str, Value]]
) -> dict[str, int]:
    """The last tensors with a token axis on the way to each output, with that axis.

    Empty where a tensor on the way grows in another manner.
    """
    writers = {name: node for node in graph.nodes for name in node.outputs}
    found: dict[str, int] = {}
    seen: set[str] = set()
    waiting = list(graph.outputs)
    while waiting:
        name = waiting.pop()
        if name in seen or any(name not in known for known in values):
            continue
        seen.add(name)
        tensors = [value for known in values if isinstance(value := known[name], Tensor)]
        shapes = [tensor.shape for tensor in tensors]
        if len(shapes) != len(values) or len(set(map(len, shapes))) != 1:
            return {}
        grown = [axis for axis in range(len(shapes[0])) if len({s[axis] for s in shapes}) > 1]
        if not grown:
            node = writers.get(name)
            if node is not None and node.op not in _OF_SIZES:
                waiting += [source for source in node.inputs if source]
            continue
        sizes = [
            (tokens, shape[grown[0]]) for (tokens, _), shape in zip(calls, shapes, strict=True)
        ]
        if any(tokens != size for tokens, size in sizes):
            return {}
        found[name] = grown[0]
    return found
