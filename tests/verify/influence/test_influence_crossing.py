"""A leak names the node in which a position is crossed, however long its path is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from influence_graphs import Builder, decoder
from onnx import ModelProto

from causal_attn.verify.influence import Claim, Leak, prove

INT = np.int64


def leak_of(model: ModelProto) -> Leak:
    claim = Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=[5])
    leak = prove(model, claim).leak
    assert leak is not None
    return leak


def rolled(b: Builder, h: str) -> str:
    """Each row becomes that of the next token."""
    tail = b("Slice", h, b.const([1], INT), b.const([99], INT), b.const([1], INT))
    return b("Pad", tail, b.const([0, 0, 0, 0, 1, 0], INT))


def mean(b: Builder, h: str) -> str:
    return b("Add", h, b("ReduceMean", h, b.const([1], INT)))


def mixed(b: Builder, h: str) -> str:
    """A product with a matrix over tokens."""
    return b("MatMul", b.weight(5, 5), h)


@pytest.mark.parametrize(
    ("extra", "node"), [(rolled, "Pad"), (mean, "ReduceMean"), (mixed, "MatMul")]
)
def test_what_moves_rows_is_named(extra: Callable[[Builder, str], str], node: str) -> None:
    made: list[str] = []

    def marked(b: Builder, h: str) -> str:
        before = len(b.nodes)
        result = extra(b, h)
        made.extend(f"{n.op_type} {n.name!r}" for n in b.nodes[before:])
        return result

    leak = leak_of(decoder(layers=3, extra=marked))
    assert leak.crossed_at in made
    assert leak.crossed_at.startswith(node)
    assert leak.crossing is not None
    assert leak.path[leak.crossing].startswith(f"{leak.crossed_at} -> ")
    assert str(leak).endswith(f", crossed at {leak.crossed_at}")


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_softmax_without_a_mask_is_named(layer: int) -> None:
    model = decoder(layers=3, mask_layers=[at for at in range(3) if at != layer])
    names = [node.name for node in model.graph.node if node.op_type == "Softmax"]
    assert leak_of(model).crossed_at == f"Softmax {names[layer]!r}"


def test_a_mask_that_is_one_to_the_right() -> None:
    model = decoder(layers=1, mask="shifted")
    assert leak_of(model).crossed_at.startswith("Softmax")
