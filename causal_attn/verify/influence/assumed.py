"""Which nodes of a leak's path were read for the worst case, so that the path may not be there.

A condition that is data may hold or not, an index that is data may point anywhere: the proof joins
what each choice would show. A path through such a node is there for some values, as far as the
node alone is concerned, and for none where other values of the same call rule them out. A path
without one is exact but for numbers that cancel.
"""

from __future__ import annotations

from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.graph import Node
from causal_attn.verify.influence.tensor import Reordered, Tensor

__all__ = ["assumes"]

_CONTROL = {
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "If": 0, "Scatter": 1, "ScatterElements": 1,
    "ScatterND": 1, "Where": 0,
}  # fmt: skip
"""The input that decides which of the other values come out."""
_ORDERED = {"ArgMax", "ArgMin", "TopK"}
"""Which value comes out is decided by the values themselves."""
_NORMALIZED = {"Softmax", "LogSoftmax"}


def assumes(frame: Frame, node: Node, source: str) -> bool:
    """Whether `node` lets `source` through in one of several ways, and the worst was taken.

    What arrives by the deciding input itself is exact: an embedding shows the id it was asked for.
    """
    if node.domain:
        return False
    if node.op in _ORDERED:
        return True
    if node.op in _NORMALIZED:
        # The constants of a mask differ where a condition that is data chooses among them.
        scores = frame.lookup(node.inputs[0])
        return isinstance(scores, Tensor) and scores.high is not scores.low
    if node.op not in _CONTROL:
        return False
    deciding = node.inputs[_CONTROL[node.op]]
    value = frame.lookup(deciding)
    chosen = isinstance(value, Reordered) or (isinstance(value, Tensor) and not value.known.all())
    return source != deciding and chosen
