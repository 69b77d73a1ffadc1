"""States, caches of an encoder and halves of a cache: what calls hand on, and what they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graph_of_lines import Dims, save_graph
from onnx import TensorProto, helper

from causal_attn.package.certificate import Check
from causal_attn.verify import verify
from causal_attn.verify.report import VariantReport

ROWS: Dims = ["batch", "sequence_length", 4]
STATE: Dims = ["batch", 1, 4]
NUMBERS = {
    "one": np.array(1), "zero": np.array(0), "axis": np.array([1]), "axis_two": np.array([2]),
    "two": np.array(2), "last": np.array([-1]), "before_last": np.array([-2]),
    "end": np.array([1 << 40]), "three_back": np.array([-3]), "no_rows": np.array([0]),
    "four_back": np.array([-4]), "kernel": np.full((4, 1, 4), 0.5, np.float32),
}  # fmt: skip


def save(path: Path, inputs: dict[str, Dims], outputs: dict[str, Dims], lines: str) -> Path:
    types = {"use_cache_branch": TensorProto.BOOL}
    return save_graph(path, inputs, outputs, lines, stored=NUMBERS, types=types)


def report(path: Path) -> VariantReport:
    (one,) = verify(path, lengths=(1, 2, 9)).variants
    return one


def decode_of(found: VariantReport) -> Check:
    (check,) = (c for c in found.certificate.checks if c.name == "decode is equivalent")
    return check


RECURRENT = """
    sums = CumSum (inputs_embeds, one)
    y = Add (sums, {state})
    {result} = Slice ({source}, last, end, axis)
"""

NAMES = [
    ("state_in", "state_out"),
    ("ssm_state.0", "new_ssm_state.0"),
    ("h0", "h0_out"),
    ("past_recurrent.3", "present_recurrent.3"),
    ("cache.conv.1", "updated_state.1"),
]


@pytest.mark.parametrize(("state", "result"), NAMES)
def test_a_recurrent_state_is_handed_on(tmp_path: Path, state: str, result: str) -> None:
    """Whatever it is called: the output that continues it has its shape."""
    lines = RECURRENT.format(state='"' + state + '"', result='"' + result + '"', source="y")
    path = save_named(tmp_path / "m.onnx", state, result, lines)
    found = report(path)
    assert decode_of(found).passed is True, decode_of(found).detail
    assert found.certificate.passed
    assert any(f"handed on as {state!r}" in note for note in found.not_checked)


@pytest.mark.parametrize(("state", "result"), NAMES)
def test_a_recurrent_state_without_what_came_before_fails(
    tmp_path: Path, state: str, result: str
) -> None:
    lines = RECURRENT.format(state='"' + state + '"', result='"' + result + '"', source="sums")
    found = report(save_named(tmp_path / "m.onnx", state, result, lines))
    assert decode_of(found).passed is False


def save_named(path: Path, state: str, result: str, lines: str) -> Path:
    """`save`, of names that onnx's parser does not read."""
    lines = lines.replace(f'"{state}"', "given_state").replace(f'"{result}"', "made_state")
    save(path, {"inputs_embeds": ROWS, "given_state": STATE}, {"y": ROWS}, lines)
    model = onnx.load(path)
    model.graph.output.append(
        helper.make_tensor_value_info("made_state", TensorProto.FLOAT, STATE)
    )
    names = {"given_state": state, "made_state": result}
    for node in model.graph.node:
        for part in (node.input, node.output):
            part[:] = [names.get(name, name) for name in part]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("first", "end", "passed"), [("three_back", "end", True), ("four_back", "last", False)]
)
def test_the_columns_a_convolution_keeps(
    tmp_path: Path, first: str, end: str, passed: bool
) -> None:
    """Three columns before the new ones: those handed on are the last, not one step late."""
    lines = f"""
        turned = Transpose <perm = [0, 2, 1]> (inputs_embeds)
        row = Concat <axis = 2> (past_conv, turned)
        present_conv = Slice (row, {first}, {end}, axis_two)
        mixed = Conv <group = 4> (row, kernel)
        y = Transpose <perm = [0, 2, 1]> (mixed)
    """
    kept: Dims = ["batch", 4, 3]
    inputs = {"inputs_embeds": ROWS, "past_conv": kept}
    found = report(save(tmp_path / "m.onnx", inputs, {"y": ROWS, "present_conv": kept}, lines))
    assert decode_of(found).passed is passed, decode_of(found).detail
    assert found.certificate.passed is passed


def caches(*names: str, dim: str) -> dict[str, Dims]:
    return {name: ["batch", 1, dim, 4] for name in names}


SELF = """
    new = Unsqueeze (inputs_embeds, axis)
    present_key_self_0 = Concat <axis = 2> (past_key_self_0, new)
    held = Shape <start = 2, end = 3> (past_key_self_0)
    sums = CumSum (present_key_self_0, two)
    tail = Slice (sums, held, end, axis_two)
    own = Squeeze (tail, axis)
"""
CROSS = """
    mean = ReduceMean <keepdims = 1> ({source}, axis_two)
    read = Squeeze (mean, axis)
    both = Add (own, read)
"""
BIAS = """
    length = Shape <start = 1, end = 2> (inputs_embeds)
    count = Squeeze (length)
    new_places = Range (zero, count, one)
    {places}
    floats = Cast <to = 1> (places)
    column = Unsqueeze (floats, axis)
    y = Add (both, column)
"""
ABSOLUTE = "offset = Squeeze (held) places = Add (new_places, offset)"
RELATIVE = "places = Identity (new_places)"


@pytest.mark.parametrize(("places", "passed"), [(ABSOLUTE, True), (RELATIVE, False)])
def test_a_cache_of_an_encoder_beside_the_decoders(
    tmp_path: Path, places: str, passed: bool
) -> None:
    """It is passed as it is; a bias that ignores the past of the decoder is found."""
    lines = SELF + CROSS.format(source="past_key_cross_0") + BIAS.format(places=places)
    inputs = {
        "inputs_embeds": ROWS,
        **caches("past_key_self_0", dim="past_sequence_length"),
        **caches("past_key_cross_0", dim="encoder_sequence_length"),
    }
    outputs = {"y": ROWS, **caches("present_key_self_0", dim="total_sequence_length")}
    found = report(save(tmp_path / "m.onnx", inputs, outputs, lines))
    assert decode_of(found).passed is passed, decode_of(found).detail
    assert found.certificate.passed is passed
    assert (
        "input 'past_key_cross_0': the same in every call, no output continues it"
        in found.not_checked
    )


def test_what_the_first_call_makes_of_an_encoder_is_kept(tmp_path: Path) -> None:
    """Later calls return nothing of it, and read what the first returned."""
    lines = (
        SELF
        + """
        flag = Squeeze (use_cache_branch)
        many = Cast <to = 7> (use_cache_branch)
        fresh = Unsqueeze (encoder_hidden_states, axis)
        picked = Where (flag, past_key_cross_0, fresh)
        length_cross = Shape <start = 2, end = 3> (picked)
        kept = Sub (one, many)
        stop = Mul (length_cross, kept)
        present_key_cross_0 = Slice (picked, no_rows, stop, axis_two)
    """
        + CROSS.format(source="picked")
        + "y = Identity (both)"
    )
    inputs: dict[str, Dims] = {
        "inputs_embeds": ROWS,
        "encoder_hidden_states": ["batch", "encoder_sequence_length", 4],
        **caches("past_key_self_0", dim="past_sequence_length"),
        **caches("past_key_cross_0", dim="encoder_sequence_length"),
        "use_cache_branch": [1],
    }
    outputs = {
        "y": ROWS,
        **caches("present_key_self_0", dim="total_sequence_length"),
        **caches("present_key_cross_0", dim="encoder_sequence_length_out"),
    }
    found = report(save(tmp_path / "m.onnx", inputs, outputs, lines))
    assert decode_of(found).passed is True, decode_of(found).detail


def test_half_a_cache_that_grows_is_named(tmp_path: Path) -> None:
    lines = (
        SELF.replace("held", "start")
        + """
        lifted = Unsqueeze (inputs_embeds, axis)
        values = Concat <axis = 2> (past_value_self_0, lifted)
        mean = ReduceMean <keepdims = 0> (past_value_self_0, axis_two)
        y = Add (own, mean)
    """
    )
    inputs = {
        "inputs_embeds": ROWS,
        **caches("past_key_self_0", "past_value_self_0", dim="past_sequence_length"),
    }
    outputs = {"y": ROWS, **caches("present_key_self_0", dim="total_sequence_length")}
    path = save(tmp_path / "m.onnx", inputs, outputs, lines)
    found = verify(path, lengths=(1, 2, 9)).variants[0]
    assert any("'past_value_self_0'" in note for note in found.not_checked)
