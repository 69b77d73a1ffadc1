"""Mixtures of experts as one operator of ``com.microsoft``."""

from __future__ import annotations

import numpy as np
import pytest
from influence_graphs import Builder
from onnx import ModelProto

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

INT = np.int64


def mixture(op: str, *, flat: bool, mixed: str = "") -> ModelProto:
    """Rows of ``x`` to the best of three experts; `mixed`: what is summed over tokens before."""
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    router = b("MatMul", x, b.weight(4, 3))
    data = x
    if mixed:
        total = b("ReduceSum", x, b.const([1], INT))
        router = b("Add", router, b("MatMul", total, b.weight(4, 3))) if mixed == "r" else router
        data = b("Add", x, total) if mixed == "x" else x
    router = b("Reshape", router, b.const([-1, 3], INT))
    if flat:
        data = b("Reshape", data, b.const([-1, 4], INT))
    weights = [b.weight(3, 4, 8), "", b.weight(3, 8, 4)]
    if op == "QMoE":
        weights = [b.weight(3, 8, 4), b.weight(3, 8), "", b.weight(3, 4, 8), b.weight(3, 4)]
    y = b(op, data, router, *weights, domain="com.microsoft", k=1)
    return b.model({"y": b("Reshape", y, b("Shape", x))}, None)


def proof_of(model: ModelProto) -> Proof:
    return prove(model, Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[1, 5]))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("op", ["MoE", "QMoE"])
def test_rows_stay_apart(op: str, flat: bool) -> None:
    proof = proof_of(mixture(op, flat=flat))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.eye(5, dtype=bool))


@pytest.mark.parametrize("mixed", ["r", "x"])
def test_what_reaches_the_router_reaches_the_row(mixed: str) -> None:
    assert proof_of(mixture("MoE", flat=True, mixed=mixed)).verdict is Verdict.NOT_CAUSAL


def test_a_router_of_other_rows_is_undecided() -> None:
    b = Builder()
    x = b.input("x", ["b", "tokens", 4])
    router = b("MatMul", b("ReduceSum", x, b.const([1], INT), keepdims=0), b.weight(4, 3))
    y = b("MoE", x, router, b.weight(3, 4, 8), "", b.weight(3, 8, 4), domain="com.microsoft")
    proof = proof_of(b.model({"y": y}, ["b", "tokens", 4]))
    assert proof.verdict is Verdict.UNDECIDED
    assert "MoE" in proof.undecided[0]
