"""What the report says was not checked: every input that no check varies is in it, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_of_lines import Dims, save_graph
from numpy.typing import NDArray
from onnx import TensorProto

from causal_attn.runtime import Session
from causal_attn.verify import verify
from causal_attn.verify.report import VariantReport

ROWS: Dims = ["batch", "sequence_length", 4]
CACHE: Dims = ["batch", "past_sequence_length", 4]
BY_TOKEN: Dims = ["batch", "sequence_length"]
TYPES = {
    "inputs_embeds": TensorProto.FLOAT, "past_key": TensorProto.FLOAT,
    "encoder_hidden_states": TensorProto.FLOAT, "use_cache_branch": TensorProto.BOOL,
}  # fmt: skip
SUMS = "one = Constant <value_int = 1> () sums = CumSum (inputs_embeds, one)"
ADDED = f"{SUMS} number = Cast <to = 1> ({{name}}) {{widen}} y = Add (sums, wide)"
WIDEN = "last = Constant <value_ints = [-1]> () wide = Unsqueeze (number, last)"
ALL = """
    first = Constant <value_ints = [0]> () least = ReduceMin <keepdims = 0> (number)
    wide = Identity (least)
"""


def save(path: Path, inputs: Mapping[str, Dims], lines: str, *, cache: bool = False) -> Path:
    outputs = {"y": ROWS}
    if cache:
        outputs["present_key"] = ["batch", "total_sequence_length", 4]
    return save_graph(path, inputs, outputs, lines, types=TYPES, otherwise=TensorProto.INT64)


def verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[VariantReport, set[str]]:
    """The report, and inputs that had the same values in all calls of equal sizes."""
    seen: dict[str, dict[object, list[NDArray[Any]]]] = {}
    run = Session.run

    def recorded(self: Session, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        sizes = tuple(sorted((name, array.shape) for name, array in feeds.items()))
        for name, array in feeds.items():
            if array.size:
                seen.setdefault(name, {}).setdefault(sizes, []).append(array.copy())
        return run(self, feeds)

    monkeypatch.setattr(Session, "run", recorded)
    (found,) = verify(path, lengths=(1, 2, 9)).variants
    held = {
        name
        for name, calls in seen.items()
        if all(np.array_equal(some[0], other) for some in calls.values() for other in some)
    }
    return found, held


def named(found: VariantReport) -> set[str]:
    return {note.split("'")[1] for note in found.not_checked if note.startswith("input ")}


PAST = f"""
    {SUMS} past = {{past}}
    axes = Constant <value_ints = [1]> () before = ReduceSum <keepdims = 1> (past, axes)
    y = Add (sums, before) present_key = Concat <axis = 1> (past, inputs_embeds)
"""


@pytest.mark.parametrize(
    ("name", "dims", "lines"),
    [
        ("position_ids", BY_TOKEN, ADDED.format(name="position_ids", widen=WIDEN)),
        ("token_type_ids", BY_TOKEN, ADDED.format(name="token_type_ids", widen=WIDEN)),
        ("segment_ids", BY_TOKEN, ADDED.format(name="segment_ids", widen=WIDEN)),
        ("attention_mask", BY_TOKEN, ADDED.format(name="attention_mask", widen=WIDEN)),
        ("cache_position", ["sequence_length"], ADDED.format(name="cache_position", widen=WIDEN)),
        ("seqlens_k", ["batch"], ADDED.format(name="seqlens_k", widen=ALL)),
        ("total_sequence_length", [], ADDED.format(name="total_sequence_length", widen=ALL)),
    ],
)
def test_an_input_held_fixed_is_named(
    tmp_path: Path, name: str, dims: Dims, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m.onnx", {"inputs_embeds": ROWS, name: dims}, lines)
    found, held = verified(path, monkeypatch)
    assert held <= named(found)
    assert name in named(found)
    assert "inputs_embeds" not in held | named(found)


@pytest.mark.parametrize(
    ("name", "dims", "past"),
    [
        ("beam_idx", ["batch"], "Gather <axis = 0> (past_key, beam_idx)"),
        (
            "use_cache_branch", [1],
            "Identity (past_key) flag = Cast <to = 1> (use_cache_branch)",
        ),
    ],
)  # fmt: skip
def test_an_input_beside_a_cache_is_named(
    tmp_path: Path, name: str, dims: Dims, past: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"inputs_embeds": ROWS, "past_key": CACHE, name: dims}
    path = save(tmp_path / "m.onnx", inputs, PAST.format(past=past), cache=True)
    found, held = verified(path, monkeypatch)
    assert held == {name}
    assert held <= named(found)


def test_the_checks_that_feed_other_values_are_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions restart in one check: the sentence says so, and that all others hold them."""
    lines = ADDED.format(name="position_ids", widen=WIDEN)
    path = save(tmp_path / "m.onnx", {"inputs_embeds": ROWS, "position_ids": BY_TOKEN}, lines)
    found, held = verified(path, monkeypatch)
    assert held == set()
    assert found.not_checked[-1] == (
        "input 'position_ids': every check but 'other positions and kinds' runs while "
        "position_ids count up"
    )


def test_nothing_is_named_where_every_input_varies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m.onnx", {"inputs_embeds": ROWS}, f"{SUMS} y = Identity (sums)")
    found, held = verified(path, monkeypatch)
    assert held == named(found) == set()
