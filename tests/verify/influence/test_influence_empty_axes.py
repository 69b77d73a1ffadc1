"""Constants without rows, which a graph may index where it never runs."""

from __future__ import annotations

import onnx
import pytest

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, prove


@pytest.mark.parametrize(
    "lines",
    [
        "place = ArgMax <axis = 0> (none)",
        "values, places = TopK (none, count) place = Squeeze (values)",
    ],
)
def test_what_numpy_refuses_of_an_empty_constant_is_no_doubt(lines: str) -> None:
    """No position is in a constant, whatever its evaluator makes of it."""
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] count = {{1}}>
        {{
            sums = CumSum (x, one)
            none = Range (zero, zero, one)
            {lines}
            number = Cast <to = 1> (place)
            y = Add (sums, number)
        }}
        """
    )
    proof = prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=(2, 5)))
    assert proof.verdict is Verdict.CAUSAL
