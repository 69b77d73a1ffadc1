"""What the node in which a position is crossed lets through: the mask it was given, as a matrix.

Every node is asked in the same way. Each place of the input on which the leak arrives gets a mark
of its own, everything else gets none, and the node's own rule says which marks reach which row of
its result. For a softmax that is which scores its mask leaves open; for a product with a matrix
over tokens, which of its entries are not zero; for a shift, the shift.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.feed import one_each
from causal_attn.verify.influence.graph import Graph
from causal_attn.verify.influence.tensor import Array, Tensor
from causal_attn.verify.influence.trace import Path, in_place, plane_of, reached_from

__all__ = ["MOST_DRAWN", "Crossed", "crossed", "layer_of"]

MOST_DRAWN = 16
"""Rows and positions that are drawn, those around the leak; more cannot be read."""

_LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[._](\d+)(?![0-9])")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Crossed:
    """Which position a node lets through to which row; `MOST_DRAWN` of each at most.

    Attributes:
        tokens: New tokens of the call that is drawn.
        past: Rows of the past in it.
        first: Position of the first row drawn, and the first position drawn.
        seen: Which row is reached by which position in this node: ``bool [rows, positions]``.
    """

    tokens: int
    past: int
    first: tuple[int, int]
    seen: NDArray[np.bool_]

    @property
    def wanted(self) -> NDArray[np.bool_]:
        """The causal mask of the same places: a row sees itself and what comes before it."""
        rows, positions = self.seen.shape
        row, position = self.first
        return np.tri(rows, positions, row - position, dtype=bool)

    def signs(self) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
        """The mask given and the one wanted: ``#`` seen, ``.`` hidden, ``X`` seen but later."""
        given = np.where(self.seen, np.where(self.wanted, "#", "X"), ".")
        return given, np.where(self.wanted, "#", ".")

    def lines(self) -> list[str]:
        """Both side by side, for a terminal: a line is a row, with its position before it."""
        signs, right = self.signs()
        row, position = self.first
        margin = len(str(row + len(signs) - 1))
        width = max(2 * signs.shape[1] + 2, 8)
        lines = [f"{'':{margin}} {'given':{width}}wanted"]
        if row or position:
            lines[0] += f", from position {position} on"
        for at, (left, beside) in enumerate(zip(signs, right, strict=True)):
            lines.append(f"{row + at:>{margin}} {' '.join(left):{width}}{' '.join(beside)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """JSON values; the masks are lists of rows of 0 and 1."""
        return {
            "tokens": self.tokens,
            "past": self.past,
            "first_row": self.first[0],
            "first_position": self.first[1],
            "given": self.seen.astype(int).tolist(),
            "wanted": self.wanted.astype(int).tolist(),
        }


def crossed(
    frame: Frame, graph: Graph, path: Path, bit: int, tokens: int, past: int
) -> Crossed | None:
    """What the node at `path.crossing` lets through; ``None`` where that is no matrix.

    Args:
        frame: The evaluated graph.
        graph: Likewise.
        path: Of `causal_attn.verify.influence.trace.trace`.
        bit: The position that is crossed.
        tokens: New tokens of the call.
        past: Rows of the past in it.
    """
    if path.crossing is None:
        return None
    node, source = path.nodes[path.crossing - 1]
    (_, start), (target, end) = path.places[path.crossing - 1 : path.crossing + 1]
    tensor, marks = frame.lookup(source), frame.mode.positions
    if not isinstance(tensor, Tensor) or not (axes := in_place(tensor, start, bit, marks)):
        return None
    size = tensor.shape[axes[0]]
    if size > marks:
        return None
    bits = one_each(size, marks - size, frame.mode.words, tensor.rank, axes[0])
    result = reached_from(frame, graph, node, target, source, bits)
    if not isinstance(result, Tensor) or (axis := _row_axis(result, {tokens, marks})) is None:
        return None
    columns, rows = _around(bit, marks), _around(end[axis], result.shape[axis])
    seen = [_rows(plane_of(result, mark), result.shape, axis, end) for mark in range(marks)]
    return Crossed(
        tokens=tokens,
        past=past,
        first=(marks - result.shape[axis] + rows.start, columns.start),
        seen=np.stack(seen, -1)[rows, columns],
    )


def _row_axis(result: Tensor, sizes: set[int]) -> int | None:
    """The axis of the rows: as many as there are tokens, and what is let through differs."""
    axes = [axis for axis, size in enumerate(result.shape) if size in sizes]
    varying = [axis for axis in axes if any(plane.shape[axis] > 1 for plane in result.bits)]
    return next(iter(varying or axes), None)


def _rows(
    plane: Array, shape: tuple[int, ...], axis: int, element: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Which rows along `axis` have a mark, in the head (and batch) that `element` is of."""
    size = shape[axis]
    wide = np.broadcast_to(plane, shape)
    # Weights are keys by queries: a row has what any of its keys has.
    at = tuple(
        slice(None) if n == size else place for n, place in zip(shape, element, strict=True)
    )
    picked = [i for i, n in enumerate(shape) if n == size]
    others = tuple(place for place, i in enumerate(picked) if i != axis)
    rows: NDArray[np.bool_] = np.logical_or.reduce(wide[at], axis=others)
    return rows


def _around(place: int, size: int) -> slice:
    """At most `MOST_DRAWN` places, with `place` among them."""
    start = min(max(place - MOST_DRAWN // 2, 0), max(size - MOST_DRAWN, 0))
    return slice(start, min(start + MOST_DRAWN, size))


def layer_of(graph: Graph, path: Path) -> str:
    """Where the node that crosses positions stands, such as ``layer 3, Softmax 4 of 12``.

    Empty where no node is seen to cross them. Names differ by exporter, the order is the graph's.
    """
    if path.crossing is None:
        return ""
    node = path.nodes[path.crossing - 1][0]
    alike = [item for item in graph.nodes if (item.domain, item.op) == (node.domain, node.op)]
    place = next(at for at, item in enumerate(alike, 1) if item is node)
    counted = f"{node.op} {place} of {len(alike)}"
    scopes = [item.value for item in node.proto.metadata_props]
    named = [found[1] for name in (node.name, *node.outputs, *scopes)
             if (found := _LAYER.search(name))]  # fmt: skip
    return f"layer {named[0]}, {counted}" if named else counted
