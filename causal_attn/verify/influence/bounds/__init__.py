"""How large values can be: intervals and norms, followed through the graph with its weights.

::

    extent      what is known of a tensor's size: an interval, a norm, a sum
    weights     extents of stored tensors, read where they lie
    step        a node with its inputs: what a rule is given, and the rules by operator
    arithmetic, moving, mixing, normed    the rules

A finite mask hides only while scores are small against it. The proof asks here how large they can
be. A row of a norm is at most ``sqrt(features)`` times the gain long whatever its input is, and a
product is at most the length of the row times the length of the weight's column
(Cauchy-Schwarz), so scores of most decoders have a bound that no input can exceed. The arithmetic
is that of real numbers; `Mode.hides` leaves room for what a float rounds.
"""

from __future__ import annotations

from causal_attn.verify.influence.bounds import (  # noqa: F401  importing registers the rules
    arithmetic,
    mixing,
    moving,
)
from causal_attn.verify.influence.bounds.extent import EMPTY, UNBOUNDED, Extent
from causal_attn.verify.influence.bounds.step import Step, extents_of
from causal_attn.verify.influence.bounds.weights import of_stored

__all__ = ["EMPTY", "UNBOUNDED", "Extent", "Step", "extents_of", "of_stored"]
