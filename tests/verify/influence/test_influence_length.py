"""The length of an input as an influence of its own, told apart from causality."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from influence_graphs import Builder, allowed, decoder
from onnx import ModelProto, TensorProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify import verify
from causal_attn.verify.checks.proof import PROOF
from causal_attn.verify.influence import Claim, Proof, prove

FLOAT, INT = np.float32, np.int64
Change = Callable[[Builder, str, str], str]
"""Builder, hidden rows and the number of tokens to other rows."""


def model(change: Change) -> ModelProto:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    length = b("Gather", b("Shape", x), b.const(1, INT), axis=0)
    h = change(b, x, length)
    scores = b("MatMul", h, b("Transpose", h, perm=[0, 2, 1]))
    hidden = b("Where", allowed(b, x), scores, b.const(-np.inf, FLOAT))
    return b.model({"y": b("MatMul", b("Softmax", hidden), h)})


def angles(b: Builder, length: str, frequencies: str) -> str:
    places = b("Range", b.const(0, INT), length, b.const(1, INT))
    column = b("Unsqueeze", b("Cast", places, to=TensorProto.FLOAT), b.const([1], INT))
    return b("Mul", column, frequencies)


def rotary(b: Builder, h: str, length: str) -> str:
    return b("Mul", h, b("Cos", angles(b, length, b.const([1, 0.5, 0.1, 0.02], FLOAT))))


def switched(b: Builder, h: str, length: str) -> str:
    """Other frequencies from 20 tokens on."""
    long = b("Greater", length, b.const(20, INT))
    tables = (b.const([1, 0.4, 0.05, 0.01], FLOAT), b.const([1, 0.5, 0.1, 0.02], FLOAT))
    return b("Mul", h, b("Cos", angles(b, length, b("Where", long, *tables))))


def count(b: Builder, h: str, length: str) -> str:
    """Divided by the number of tokens."""
    return b("Div", h, b("Cast", length, to=TensorProto.FLOAT))


def base(b: Builder, h: str, length: str) -> str:
    """A base that follows the length."""
    grown = b("Sqrt", b("Cast", length, to=TensorProto.FLOAT))
    frequencies = b("Div", b.const([1, 0.5, 0.1, 0.02], FLOAT), grown)
    return b("Mul", h, b("Cos", angles(b, length, frequencies)))


def proof_of(made: ModelProto, longest: int = 24) -> Proof:
    return prove(made, Claim(tokens={"x": 1}, outputs={"y": 1}, longest=longest))


@pytest.mark.parametrize(("change", "node"), [(switched, "Mul"), (count, "Div"), (base, "Mul")])
def test_a_length_that_reaches_values_is_named(change: Change, node: str) -> None:
    proof = proof_of(model(change))
    assert proof.verdict is Verdict.CAUSAL
    assert len(proof.length_at) == 1
    assert proof.length_at[0].startswith(node)


def test_a_length_that_makes_shapes_and_masks_alone_is_not() -> None:
    assert proof_of(model(rotary)).length_at == ()
    claim = Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, longest=40)
    assert prove(decoder(fill=-1e4), claim).length_at == ()


def test_a_switch_beyond_what_is_examined_is_not_seen() -> None:
    claim = Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=(1, 2, 20))
    assert prove(model(switched), claim).length_at == ()


def test_the_check_says_so_beside_the_verdict(tmp_path: Path) -> None:
    made = model(count)
    made.ir_version = 9
    onnx.save(made, tmp_path / "m.onnx")
    (one,) = verify(tmp_path / "m.onnx", tokens_axis={"x": 1}, lengths=(1, 2, 5)).variants
    assert one.certificate.verdict is Verdict.CAUSAL
    (check,) = (check for check in one.certificate.checks if check.name == PROOF)
    assert "values depend on the length of the input at Div" in check.detail
    assert check.figures["length_at"]
