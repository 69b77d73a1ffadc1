"""The influence proof: which input position can reach which output position, for any ONNX graph.

::

    tensor      what is known of a tensor: shape, bits, values, as planes
    graph       a graph read from its protobuf; weights stay unread
    order       names a node reads, nodes in an order
    program     graph, functions and operator versions of a model
    registry    rules by operator, and what a rule is given
    elementwise, unary, movement, shapes, indexing, scatter, reductions, softmax, products,
    quantize, convolution, recurrent, attention, contrib_attention, experts, control    the rules
    combine     what elementwise rules make of two tensors
    same        where two tensors hold one and the same element
    bounds      how large scores can be, with the weights
    carried     which outputs hand the past on
    folding     nodes whose inputs are all known
    evaluate    nodes in order, bodies entered, doubts marked
    claim       what is to be proved
    calls       which lengths and pasts are examined
    feed        inputs of one call
    trace       the path of a leak
    crossed     the mask in the node where a leak crosses positions
    length      where the length of an input reaches values
    reordered   rows that data moves and moves back
    rows        which position a row of an output is of
    one_call    one call: masks read strictly, by the size of scores, leniently
    proof       all calls together, the verdict
    every       the same for every length
    batch       the same for the sequences of a batch

Limits. The proof is about finite data (``0 * NaN`` passes a weight of zero), about the lengths it
is asked for unless it says that it is about every one, about one row of a batch unless ``dims``
says more, and about the kernels of ONNX Runtime 1.32.0 where operators of ``com.microsoft`` or
``Attention`` below opset 25 leave a choice.
It follows sets of positions, not values: two paths that cancel still count as a path. Operators
without a rule make the verdict ``undecided`` where it depends on them: among others Resize, DFT,
GridSample, Unique of data, NonZero of data whose rows do not return, the packed, paged, sparse and
quantized attention of ``com.microsoft``, and every domain it does not know.

Everything below `proof` is pure: no rule keeps state, and what is seen on the way is kept in the
`Mode` of one evaluation.
"""

from __future__ import annotations

from causal_attn.verify.influence.batch import BATCHES, Independence, prove_independent
from causal_attn.verify.influence.claim import LENGTHS, Claim
from causal_attn.verify.influence.feed import Known, ones, positions
from causal_attn.verify.influence.proof import prove
from causal_attn.verify.influence.result import Leak, Proof
from causal_attn.verify.influence.rules import (  # noqa: F401  importing a module registers its rules
    attention,
    contrib_attention,
    control,
    convolution,
    elementwise,
    experts,
    indexing,
    movement,
    products,
    quantize,
    recurrent,
    reductions,
    scatter,
    shapes,
    softmax,
    unary,
)
from causal_attn.verify.influence.selected import prove_selected

__all__ = [
    "BATCHES",
    "LENGTHS",
    "Claim",
    "Independence",
    "Known",
    "Leak",
    "Proof",
    "ones",
    "positions",
    "prove",
    "prove_independent",
    "prove_selected",
]
