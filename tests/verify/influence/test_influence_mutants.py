"""A causal decoder is causal, and every way of spoiling it is found, each by its name."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, decoder
from onnx import ModelProto, TensorProto, helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove


def verdict_of(model: ModelProto, **options: Any) -> Proof:
    return prove(model, Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, **options))


def plus_reduced(op: str) -> Any:
    def extra(b: Builder, x: str) -> str:
        return b("Add", x, b(op, x, b.const([1], np.int64), keepdims=1))

    return extra


def convolution(pads: list[int]) -> Any:
    def extra(b: Builder, x: str) -> str:
        turned = b("Transpose", x, perm=[0, 2, 1])
        kernel = b.const(np.full((16, 1, 3), 0.5), np.float32)
        mixed = b("Conv", turned, kernel, group=16, pads=pads, kernel_shape=[3])
        return b("Add", x, b("Transpose", mixed, perm=[0, 2, 1]))

    return extra


def cumulative(**attributes: int) -> Any:
    def extra(b: Builder, x: str) -> str:
        return b("Add", x, b("CumSum", x, b.const(1, np.int64), **attributes))

    return extra


def mystery(b: Builder, x: str) -> str:
    return b("Mystery", x, domain="acme")


CAUSAL: dict[str, dict[str, Any]] = {
    "as it should be": {},
    "one layer": {"layers": 1},
    "one head": {"heads": 1},
    "k and v swapped: wrong numbers, but no fault of causality": {"swap": True, "width": 4,
                                                                 "heads": 1},
    "causal convolution": {"extra": convolution([2, 0])},
    "running sum": {"extra": cumulative()},
    "running sum of the past only": {"extra": cumulative(exclusive=1)},
}  # fmt: skip

MUTANTS: dict[str, dict[str, Any]] = {
    "mask shifted by one": {"mask": "shifted"},
    "mask transposed": {"mask": "transposed"},
    "mask dropped in one layer of two": {"mask_layers": [1]},
    "mask dropped in the other layer of two": {"mask_layers": [0]},
    "mask dropped in one head of four": {"mask": "one head"},
    "mask dropped everywhere": {"mask_layers": []},
    "mask frozen at one token": {"mask": "frozen at one"},
    "mask so shallow that it hides nothing": {"fill": -100.0},
    "softmax over the queries": {"softmax_axis": -2},
    "norm over the tokens": {"norm_axis": 1},
    "mean over the tokens": {"extra": plus_reduced("ReduceMean")},
    "maximum over the tokens": {"extra": plus_reduced("ReduceMax")},
    "convolution padded on both sides": {"extra": convolution([1, 1])},
    "running sum from the end": {"extra": cumulative(reverse=1)},
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_decoder_is_causal(name: str) -> None:
    proof = verdict_of(decoder(**CAUSAL[name]))
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    matrix = proof.outputs["logits"]
    assert np.array_equal(matrix, np.tri(33, dtype=bool))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_not_causal(name: str) -> None:
    proof = verdict_of(decoder(**MUTANTS[name]))
    assert proof.verdict is Verdict.NOT_CAUSAL, str(proof)
    leak = proof.leak
    assert leak is not None
    assert leak.position > leak.query
    assert leak.path[0] == f"input_ids[0, {leak.position}]"
    assert leak.path[-1].endswith(f"-> logits[0, {leak.query}, 0]")
    assert str(leak.position) in str(proof)


def test_mask_frozen_at_traced_length_is_caught() -> None:
    model = decoder(mask="frozen")
    assert verdict_of(model, lengths=[6]).verdict is Verdict.CAUSAL
    proof = verdict_of(model)
    assert proof.verdict is Verdict.UNDECIDED
    assert any("do not fit" in reason for reason in proof.undecided)


@pytest.mark.parametrize("fill", [-1e4, -65504.0])
def test_finite_mask_that_scores_may_reach_is_conditional(fill: float) -> None:
    proof = verdict_of(decoder(fill=fill))
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.score_bound == pytest.approx((-fill - 104) / 2, rel=1e-2)
    assert proof.largest_score is None
    assert np.array_equal(proof.outputs["logits"], np.tri(33, dtype=bool))


@pytest.mark.parametrize("fill", [-1e9, float(np.finfo(np.float32).min)])
def test_finite_mask_that_no_score_reaches_is_causal(fill: float) -> None:
    """Weights of about 3 and norms before each product keep scores below a million."""
    proof = verdict_of(decoder(fill=fill))
    assert proof.verdict is Verdict.CAUSAL
    assert proof.score_bound == pytest.approx(-fill / 2, rel=1e-2)
    assert proof.largest_score is not None
    assert proof.largest_score < 1e6
    assert np.array_equal(proof.outputs["logits"], np.tri(33, dtype=bool))


def test_finite_mask_does_not_excuse_another_leak() -> None:
    proof = verdict_of(decoder(fill=-1e4, mask_layers=[1]))
    assert proof.verdict is Verdict.NOT_CAUSAL


def test_unknown_operator_is_undecided_and_named() -> None:
    proof = verdict_of(decoder(extra=mystery))
    assert proof.verdict is Verdict.UNDECIDED
    assert len(proof.undecided) == 1
    assert "acme.Mystery" in proof.undecided[0]
    assert "no rule" in proof.undecided[0]


def test_unknown_operator_does_not_excuse_a_leak_beside_it() -> None:
    proof = verdict_of(decoder(extra=mystery, mask_layers=[1]))
    # The operator stands after the leak of the first layer, and might drop it: undecided.
    assert proof.verdict is Verdict.UNDECIDED
    b = Builder()
    x = b.input("x", ["b", "tokens", "c"])
    unknown = b("Mystery", x, domain="acme")
    model = b.model({"y": b("Add", unknown, b("ReduceMean", x, b.const([1], np.int64)))})
    # Without a shape for what the operator writes, the sum's rows are not known to be tokens.
    assert prove(model, Claim(tokens={"x": 1}, dims={"c": 4})).verdict is Verdict.UNDECIDED
    shape = helper.make_tensor_value_info(unknown, TensorProto.FLOAT, ["b", "tokens", "c"])
    model.graph.value_info.append(shape)
    assert prove(model, Claim(tokens={"x": 1}, dims={"c": 4})).verdict is Verdict.NOT_CAUSAL


def test_path_names_the_layer_without_a_mask() -> None:
    proof = verdict_of(decoder(mask_layers=[1]))
    assert proof.leak is not None
    softmaxes = [step for step in proof.leak.path if step.startswith("Softmax")]
    assert len(softmaxes) >= 1


def test_two_layers_at_twelve_lengths_within_five_seconds() -> None:
    started = time.perf_counter()
    proof = verdict_of(decoder(width=64), lengths=range(1, 13))
    assert proof.verdict is Verdict.CAUSAL
    assert proof.lengths == tuple(range(1, 13))
    assert time.perf_counter() - started < 5.0
