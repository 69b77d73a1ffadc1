"""The proof of one call: masks are read strictly, by the size of scores, then leniently.

Only what a mask hides for certain counts at first: ``-inf``. Where scores have a bound under which
finite masks hide, that counts too. Else the verdict depends on the size of scores, and the widest
gap that hides is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import PackageError
from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence.assumed import assumes
from causal_attn.verify.influence.bounds import EMPTY, Extent
from causal_attn.verify.influence.carried import carried_inputs
from causal_attn.verify.influence.crossed import crossed, layer_of
from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.feed import Axes, Known, bind, feed
from causal_attn.verify.influence.length import LengthWatch
from causal_attn.verify.influence.program import Program
from causal_attn.verify.influence.registry import Mode
from causal_attn.verify.influence.result import Leak, Proof
from causal_attn.verify.influence.rows import Rows
from causal_attn.verify.influence.tensor import Reordered, Sequenced, Tensor, Value, join_words
from causal_attn.verify.influence.trace import trace

__all__ = ["Question", "examine", "output_values", "row_positions", "values_of"]

_GROWTH = 3
"""Evaluations after which a cache must be as large as the one before it."""

_RUNGS = (1e30, 3e4, 5e3, 500.0, 150.0)
"""Gaps that hide, tried from the widest: lowest float32, lowest float16, -1e4, -1e3, less."""


@dataclass(frozen=True, slots=True)
class _Findings:
    """One evaluation of one call.

    Attributes:
        frame: All values.
        matrices: For each output examined, which row is reached by which position.
        doubtful: Likewise, by which cause of doubt.
        leaks: What of `matrices` is the future.
        last: The last position that may reach each row, or the sequence that it is of.
    """

    frame: Frame
    matrices: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    doubtful: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    leaks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    last: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def causal(self) -> bool:
        return not any(leak.any() for leak in self.leaks.values())


@dataclass(frozen=True, slots=True)
class Question:
    """A claim about a program, with the outputs to examine.

    Attributes:
        program: The model.
        axes: Token axes of inputs.
        outputs: Token axes of outputs whose rows are the tokens.
        dims: Sizes of other named dims.
        known: Inputs whose values are fixed.
        others: Outputs whose rows are not the tokens, or all of them where sequences are told
            apart; ``None``: how many rows there are is not known.
        carried: How large the past was found to be in the last call that measured it.
        watch: Compares calls of different lengths.
    """

    program: Program
    axes: Axes
    outputs: Mapping[str, int]
    dims: Mapping[str, int]
    known: Mapping[str, Known]
    others: Mapping[str, Rows | None] = field(default_factory=dict)
    carried: dict[str, Extent] = field(default_factory=dict)
    watch: LengthWatch | None = None

    def marks(self, tokens: int, past: int) -> int:
        """How many things are told apart in a call: positions, or the sequences of a batch."""
        return self.axes.sequences or past + tokens

    def axis(self, output: str) -> int:
        """The axis of an output along which its rows lie."""
        rows = self.others.get(output)
        return rows.axis if rows is not None else self.outputs.get(output, 0)

    def shown(self, matrices: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.bool_]]:
        """Those of outputs whose rows are the tokens."""
        return {name: matrix for name, matrix in matrices.items() if name in self.outputs}


def examine(question: Question, tokens: int, past: int, *, measured: bool) -> Proof:
    call = ((tokens, past),)
    if measured and (proof := _measure(question, tokens, past)) is not None:
        return proof
    strict = _evaluate(question, tokens, past, float("inf"), optimistic=False)
    if strict.causal:
        return Proof(verdict=Verdict.CAUSAL, outputs=question.shown(strict.matrices), calls=call)
    if not measured and strict.frame.mode.largest_gap > 0:
        proof = _measure(question, tokens, past)
        if proof is not None:
            return proof
    lenient, threshold = strict, float("inf")
    for threshold in _RUNGS:
        if threshold > strict.frame.mode.largest_gap:
            continue
        lenient = _evaluate(question, tokens, past, threshold, optimistic=False)
        if lenient.causal:
            return Proof(
                verdict=Verdict.CONDITIONAL,
                outputs=question.shown(lenient.matrices),
                calls=call,
                score_bound=lenient.frame.mode.score_bound,
            )
    sure = lenient
    if lenient.frame.mode.doubts:
        threshold = lenient.frame.mode.threshold
        sure = _evaluate(question, tokens, past, threshold, optimistic=True)
    if sure.causal:
        return Proof(
            verdict=Verdict.UNDECIDED,
            outputs=question.shown(lenient.matrices),
            calls=call,
            undecided=tuple(_doubts(lenient)),
        )
    return Proof(
        verdict=Verdict.NOT_CAUSAL,
        outputs=question.shown(lenient.matrices),
        calls=call,
        leak=_first_leak(question, sure, tokens, past),
    )


def _measure(question: Question, tokens: int, past: int) -> Proof | None:
    """The proof where scores have a bound under which the masks hide; ``None``: it does not.

    A past is as large as what the graph itself hands on: the claim is about a cache that the
    graph wrote. Each of its inputs is taken to be empty first, or as large as in another call, and
    then as large as the output that continues it; where the output stays within that, so it does
    from call to call.
    """
    carried = carried_inputs(question.program.graph, question.axes.past) if past else {}
    extents = {name: question.carried.get(name, EMPTY) for name in carried}
    for _ in range(_GROWTH):
        findings = _evaluate(question, tokens, past, np.inf, optimistic=False, extents=extents)
        written = {name: findings.frame.extent(output) for name, output in carried.items()}
        if all(_within(written[name], extents[name]) for name in carried):
            break
        extents = written
    else:
        return None
    if not findings.causal:
        return None
    question.carried.update(extents)
    mode = findings.frame.mode
    found = bool(np.isfinite(mode.proved_bound))
    return Proof(
        verdict=Verdict.CAUSAL,
        outputs=question.shown(findings.matrices),
        calls=((tokens, past),),
        score_bound=mode.proved_bound if found else None,
        largest_score=mode.largest_score if found else None,
    )


def _within(inner: Extent, outer: Extent) -> bool:
    """Whether what a call writes is no larger than what it read, but for rounding."""
    slack = 1e-6 * outer.size
    norm = inner.norm <= outer.norm * (1 + 1e-6) and outer.axes <= inner.axes
    low, high = outer.low - slack <= inner.low, inner.high <= outer.high + slack
    return low and high and (norm or not outer.axes)


def _evaluate(
    question: Question,
    tokens: int,
    past: int,
    threshold: float,
    *,
    optimistic: bool,
    extents: Mapping[str, Extent] | None = None,
) -> _Findings:
    """Evaluate one call; with `extents` of inputs, how large values are is followed too."""
    mode = Mode(
        positions=question.marks(tokens, past),
        threshold=threshold,
        optimistic=optimistic,
        measured=extents is not None,
    )
    findings = _Findings(_frame(question, tokens, past, mode, extents or {}))
    frame = findings.frame
    if question.watch is not None:
        question.watch.see(frame, question.program.graph, past)
    for name, axis in question.outputs.items():
        _check_axis(name, frame.values[name], axis)
        _find(findings, question, name, tokens, past)
    for name in question.others:
        _find(findings, question, name, tokens, past)
    return findings


def _frame(
    question: Question, tokens: int, past: int, mode: Mode, extents: Mapping[str, Extent]
) -> Frame:
    graph = question.program.graph
    bound = bind(graph, question.axes, tokens, past, question.dims)
    assert bound is not None  # calls that do not fit are left out
    values = feed(graph, question.axes, tokens, past, bound, question.known, mode)
    frame = Frame(question.program, mode, values=values, dims=bound)
    frame.extents.update(extents)
    frame.run(graph)
    return frame


def values_of(question: Question, tokens: int, past: int) -> dict[str, Value]:
    """Every value of one call, masks read strictly."""
    frame = _frame(question, tokens, past, Mode(positions=question.marks(tokens, past)), {})
    return {
        name: value.loose() if isinstance(value, Reordered) else value
        for name, value in frame.values.items()
    }


def output_values(question: Question, tokens: int, past: int) -> dict[str, Value]:
    """Every output of one call, masks read strictly."""
    values = values_of(question, tokens, past)
    return {name: values[name] for name in question.program.graph.outputs}


def _find(findings: _Findings, question: Question, name: str, tokens: int, past: int) -> None:
    """Add what reaches the rows of one output."""
    mode, value = findings.frame.mode, findings.frame.values[name]
    value = value.loose() if isinstance(value, Reordered) else value
    matrix = _matrix(value, question.axis(name), tokens, 64 * mode.words)
    count = matrix.shape[0]
    findings.matrices[name] = seen = matrix[:, : mode.positions]
    findings.doubtful[name] = matrix[:, mode.positions :]
    orders = [row_positions(count, tokens, past)]
    if name in question.others:
        rows = question.others[name]
        size = (question.axes.sequences, 0) if question.axes.sequences else (tokens, past)
        orders = rows.last_positions(count, *size) if rows is not None else []
    if not isinstance(value, Tensor) or not orders:
        # Nothing is known of its rows, not even how many: never surely causal or leaking.
        unsure = not mode.optimistic and (name in question.outputs or bool(seen.any()))
        if unsure and name in question.others:
            bit = mode.doubt(f"output {name!r}: which position its rows are of cannot be told")
            findings.doubtful[name][:, bit - mode.positions] = True
        findings.last[name] = row_positions(count, tokens, past)
        findings.leaks[name] = np.full_like(seen, unsure)
        return
    allowed = np.equal if question.axes.sequences else np.less_equal
    leaks = [seen & ~allowed(np.arange(mode.positions), last[:, None]) for last in orders]
    best = min(range(len(orders)), key=lambda at: bool(leaks[at].any()))
    findings.last[name], findings.leaks[name] = orders[best], leaks[best]


def _check_axis(name: str, value: Value, axis: int) -> None:
    rank = value.rank if isinstance(value, Tensor) else None
    if isinstance(value, Sequenced) or (rank is not None and not -rank <= axis < rank):
        found = "a sequence" if rank is None else f"a tensor of {rank} axes"
        raise PackageError(
            f"Output {name!r} must be a tensor with the token axis {axis}, got {found}. Name its "
            "axis in `outputs`, or export the model again if it declares another shape."
        )


def _matrix(value: Value, axis: int, tokens: int, width: int) -> NDArray[np.bool_]:
    """Which row is reached by which bit: ``bool [rows, width]``."""
    if not isinstance(value, Tensor):
        words = np.array([join_words(value)], np.uint64).repeat(tokens, 0)
    else:
        axis %= value.rank
        others = tuple(at for at in range(value.rank) if at != axis)
        rows = value.shape[axis]
        planes = [np.bitwise_or.reduce(p, axis=others, initial=0) for p in value.bits]
        words = np.stack([np.broadcast_to(plane, (rows,)) for plane in planes], -1)
    places = np.arange(width, dtype=np.uint64)
    picked = words[:, (places // np.uint64(64)).astype(int)]
    matrix: NDArray[np.bool_] = (picked >> (places % np.uint64(64))) & np.uint64(1) == 1
    return matrix


def row_positions(rows: int, tokens: int, past: int) -> NDArray[np.int64]:
    """Positions of an output's rows: the last `rows` of the call, a cache being all of it."""
    return np.arange(past + tokens - rows, past + tokens)


def _doubts(findings: _Findings) -> list[str]:
    mode = findings.frame.mode
    seen = np.zeros(64 * mode.words - mode.positions, bool)
    for name, leak in findings.leaks.items():
        seen |= findings.doubtful[name][leak.any(1)].any(0)
    names = [reason for place, reason in enumerate(mode.doubts) if seen[min(place, len(seen) - 1)]]
    return names or list(mode.doubts)


def _first_leak(question: Question, findings: _Findings, tokens: int, past: int) -> Leak:
    name = next(name for name, leak in findings.leaks.items() if leak.any())
    row, bit = (int(place) for place in np.argwhere(findings.leaks[name])[0])
    graph = question.program.graph
    path = trace(findings.frame, graph, name, question.axis(name), row, bit)
    assumed = [str(node) for node, source in path.nodes if assumes(findings.frame, node, source)]
    of_positions = not question.axes.sequences
    return Leak(
        output=name,
        query=int(findings.last[name][row]),
        position=bit,
        tokens=tokens,
        past=past,
        path=path.steps,
        crossing=path.crossing,
        layer=layer_of(graph, path),
        crossed=crossed(findings.frame, graph, path, bit, tokens, past) if of_positions else None,
        assumed=tuple(dict.fromkeys(assumed)),
        of="position" if of_positions else "sequence",
    )
