"""Whether a graph is causal at every length, and not only at those that were examined.

::

    affine      conditions on whole numbers, and whether they can hold together
    symbolic    a tensor of any length
    run         one evaluation: sizes, questions, rules by operator
    mapped      what rules start from whose elements stay at their places
    mapping, arithmetic, choosing, shaping, regrouping, moving, mixing, attending    the rules
    prove       the inputs, the nodes in order, the outputs

The proof of one call follows sets of positions, at sizes that are numbers. Here sizes are formulas
in the number of new tokens and of the past, and what an element sees is a bound: the positions up
to its own row. That is coarser, so that far fewer graphs are proved: those in which every node is
the same at all lengths, keeps rows where they are, and sums over them only under a mask that is a
formula in the places of row and column, the length and the past. What is not, is named.

Lengths are those up to 2**24 positions: beyond, counting in float32 or int32 is not exact.
"""

from __future__ import annotations

from causal_attn.verify.influence.every.prove import EveryLength, prove_every_length

__all__ = ["EveryLength", "prove_every_length"]
