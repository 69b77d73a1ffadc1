"""A leak names the node in which a position is crossed, however long its path is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from influence_graphs import Builder, decoder
from onnx import ModelProto

from causal_attn.verify.influence import Claim, Leak, prove
from causal_attn.verify.influence.crossed import MOST_DRAWN, Crossed

INT = np.int64


def leak_of(model: ModelProto, lengths: Sequence[int] = (5,)) -> Leak:
    claim = Claim(tokens={"input_ids": 1}, outputs={"logits": 1}, lengths=lengths)
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
    assert f", crossed at {leak.crossed_at} ({node} " in str(leak)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_softmax_without_a_mask_is_named(layer: int) -> None:
    model = decoder(layers=3, mask_layers=[at for at in range(3) if at != layer])
    names = [node.name for node in model.graph.node if node.op_type == "Softmax"]
    assert leak_of(model).crossed_at == f"Softmax {names[layer]!r}"


def test_a_mask_that_is_one_to_the_right() -> None:
    model = decoder(layers=1, mask="shifted")
    assert leak_of(model).crossed_at.startswith("Softmax")


ROWS, COLUMNS = np.indices((8, 8))


@pytest.mark.parametrize(
    ("mask", "given"),
    [
        ("shifted", COLUMNS <= ROWS + 1),
        ("transposed", ROWS <= COLUMNS),
        ("tiled", COLUMNS % 4 <= ROWS % 4),
        ("one head", np.ones((8, 8), bool)),
    ],
)
def test_the_mask_that_was_given_is_drawn(mask: str, given: np.ndarray) -> None:
    """At the largest length that leaks in the same node, whichever shows it first."""
    leak = leak_of(decoder(layers=2, mask=mask), lengths=(2, 3, 5, 8, 33))
    drawn = leak.crossed
    assert drawn is not None
    assert leak.crossed_at.startswith("Softmax")
    assert (drawn.tokens, drawn.past, drawn.first) == (8, 0, (0, 0))
    assert leak.layer == "Softmax 1 of 2"
    assert np.array_equal(drawn.seen, given)
    assert np.array_equal(drawn.wanted, np.tri(8, dtype=bool))


def test_a_mask_that_is_missing_in_one_layer() -> None:
    leak = leak_of(decoder(layers=3, mask_layers=[0, 2]), lengths=(2, 3, 5))
    assert leak.crossed is not None
    assert leak.layer == "Softmax 2 of 3"
    assert leak.crossed.seen.shape == (5, 5)
    assert leak.crossed.seen.all()


def test_of_a_long_call_the_places_around_the_leak_are_drawn() -> None:
    drawn = leak_of(decoder(mask="shifted"), lengths=(33,)).crossed
    assert drawn is not None
    assert drawn.seen.shape == (MOST_DRAWN, MOST_DRAWN)
    assert (drawn.seen & ~drawn.wanted).any()


def test_the_layer_has_the_number_that_names_give_it() -> None:
    model = decoder(layers=2, mask="shifted")
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.name = f"/model/layers.7/self_attn/{node.name}"
    assert leak_of(model).layer == "layer 7, Softmax 1 of 2"


def test_both_masks_are_written_side_by_side() -> None:
    seen = np.array([[1, 1, 0], [0, 1, 1]], bool)
    drawn = Crossed(tokens=2, past=9, first=(10, 9), seen=seen)
    assert drawn.lines() == [
        "   given   wanted, from position 9 on",
        "10 # # .   # # .",
        "11 . # #   # # #",
    ]
    wrong = Crossed(tokens=2, past=0, first=(0, 0), seen=seen)
    assert wrong.lines() == [
        "  given   wanted",
        "0 # X .   # . .",
        "1 . # X   # # .",
    ]
    assert wrong.to_dict() == {
        "tokens": 2, "past": 0, "first_row": 0, "first_position": 0,
        "given": [[1, 1, 0], [0, 1, 1]], "wanted": [[1, 0, 0], [1, 1, 0]],
    }  # fmt: skip
