"""Constants without rows, which a graph may index where it never runs."""

from __future__ import annotations

import onnx

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, prove


def test_an_index_of_an_empty_constant_is_no_traceback() -> None:
    """numpy raises an IndexError there; a merged decoder has it in the branch not taken."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x, bool flag) => (float[batch, tokens, 4] y)
        <int64 zero = {0}, int64 one = {1}, int64 far = {-1}>
        {
            sums = CumSum (x, one)
            none = Range (zero, zero, one)
            y = If (flag) <
                then_branch = taken () => (float[b, t, 4] a) {
                    place = Gather (none, far)
                    number = Cast <to = 1> (place)
                    a = Add (sums, number)
                },
                else_branch = other () => (float[b, t, 4] b) { b = Identity (sums) }
            >
        }
        """
    )
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=(2, 5)))
    assert proof.verdict is not Verdict.NOT_CAUSAL
