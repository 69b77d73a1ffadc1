"""Inputs whose values follow from the call, by the names the ecosystem has for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graph_of_lines import Dims, save_graph
from onnx import TensorProto, helper

from causal_attn.cli.tables import verdict_line
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.verify import verify
from causal_attn.verify.checks.other_values import OTHER_VALUES
from causal_attn.verify.checks.proof import PROOF
from causal_attn.verify.influence import proof
from causal_attn.verify.page.headline import headline
from causal_attn.verify.report import VariantReport

LENGTHS = (1, 2, 9)
EMBEDDED: Dims = ["batch", "sequence_length", 4]
CACHE: Dims = ["batch", 1, "past_sequence_length", 4]
ATTEND = """
    turned = Transpose <perm = [0, 1, 3, 2]> (keys)
    scores = MatMul (query, turned)
    count = Shape <start = 2, end = 3> (scores)
    total = Shape <start = 3, end = 4> (scores)
    rows_end = Squeeze (count)
    columns_end = Squeeze (total)
    before = Sub (columns_end, rows_end)
    new = Range (zero, rows_end, one)
    places = Add (new, before)
    rows = Unsqueeze (places, axis)
    columns = Range (zero, columns_end, one)
    seen = LessOrEqual (columns, rows)
"""
HIDE = """
    masked = Where (seen, scores, hidden)
    weights = Softmax (masked)
    mixed = MatMul (weights, keys)
"""
TYPES = {
    "inputs_embeds": TensorProto.FLOAT, "past_key_0": TensorProto.FLOAT,
    "use_cache_branch": TensorProto.BOOL,
}  # fmt: skip
STORED = {
    "zero": np.array(0), "one": np.array(1), "axis": np.array([1]), "hidden": np.float32(-np.inf),
}  # fmt: skip
KEYS = "one_axis = Constant <value_ints = [1]> () query = Unsqueeze (inputs_embeds, one_axis)"


def save(path: Path, inputs: dict[str, Dims], body: str, *, cache: bool = False) -> Path:
    """A graph of the lines in `body`, which end in ``y`` and, with a cache, ``present_key_0``."""
    outputs: dict[str, Dims] = {"y": EMBEDDED}
    if cache:
        outputs["present_key_0"] = ["batch", 1, "total", 4]
    return save_graph(
        path, inputs, outputs, body, stored=STORED, types=TYPES, otherwise=TensorProto.INT64
    )


def report(path: Path) -> VariantReport:
    (one,) = verify(path, lengths=LENGTHS).variants
    return one


def proof_of(found: VariantReport) -> Check:
    (check,) = (check for check in found.certificate.checks if check.name == PROOF)
    return check


@pytest.mark.parametrize(
    ("name", "kind"), [("token_type_ids", 0), ("mm_token_type_ids", 0), ("segment_ids", 1)]
)
def test_a_block_opened_by_types_is_conditional(tmp_path: Path, name: str, kind: int) -> None:
    """Tokens of another kind see one another: the claim holds for one kind only."""
    body = f"""
    {KEYS} keys = Identity (query) {ATTEND}
    kind = Constant <value_int = {kind}> ()
    same = Equal ({name}, kind)
    other = Not (same)
    two = Constant <value_ints = [1, 2]> () three = Constant <value_ints = [1, 3]> ()
    other_key = Unsqueeze (other, two)
    other_row = Unsqueeze (other, three)
    together = And (other_row, other_key)
    open = Or (seen, together)
    masked = Where (open, scores, hidden) weights = Softmax (masked) mixed = MatMul (weights, keys)
    y = Squeeze (mixed, one_axis)
    """
    inputs: dict[str, Dims] = {
        "inputs_embeds": EMBEDDED, name: ["batch", "sequence_length"]
    }  # fmt: skip
    found = report(save(tmp_path / "m.onnx", inputs, body))
    assert found.certificate.verdict is Verdict.CONDITIONAL
    assert not found.certificate.passed
    assert proof_of(found).passed is None
    assert proof_of(found).detail.endswith(f"while {name} are {kind}")
    assert found.certificate.conditions == (f"{name} are {kind}",)
    again = Certificate.from_json(found.certificate.to_json())
    assert again.conditions == found.certificate.conditions
    assert str(verdict_line(again)) == f"conditional while {name} are {kind}"
    assert headline(found).words == f"Causal while {name} are {kind}"
    assert headline(found).tone == "unsure"


def test_a_cache_reordered_in_the_graph(tmp_path: Path) -> None:
    """``beam_idx`` picks sequences of the past: each goes on from itself, and decoding runs."""
    body = f"""
    {KEYS} past = Gather <axis = 0> (past_key_0, beam_idx)
    keys = Concat <axis = 2> (past, query) {ATTEND} {HIDE}
    y = Squeeze (mixed, one_axis) present_key_0 = Identity (keys)
    """
    inputs: dict[str, Dims] = {
        "inputs_embeds": EMBEDDED, "past_key_0": CACHE, "beam_idx": ["batch"]
    }  # fmt: skip
    found = report(save(tmp_path / "m.onnx", inputs, body, cache=True))
    assert found.certificate.passed, [c for c in found.certificate.checks if not c.passed]
    assert "decode is equivalent" in {check.name for check in found.certificate.checks}


def merged(path: Path, *, open_prompt: bool) -> Path:
    """A decoder for prompts and one with a past, chosen by a flag."""
    branches = []
    for past in (True, False):
        keys = "Concat <axis = 2> (past_key_0, query)" if past else "Identity (query)"
        hide = HIDE.replace("seen", "all") if open_prompt and not past else HIDE
        lines = f"""
        {KEYS} keys = {keys} {ATTEND} all = Or (seen, yes) {hide}
        y = Squeeze (mixed, one_axis) present = Identity (keys)
        """
        names = ("past_key_0", "inputs_embeds", "zero", "one", "axis", "hidden", "yes")
        body = onnx.parser.parse_graph(
            "g (float[1] unused) => (float[b, t, 4] y, float[b, 1, n, 4] present) {" + lines + "}"
        )
        del body.input[:]
        for node in body.node:
            for part in (node.input, node.output):
                part[:] = [n if n in names else f"{n}_{past}" for n in part]
        for value in body.output:
            value.name = f"{value.name}_{past}"
        branches.append(body)
    choose = "yes = Constant <value_int = 1> () no = Identity (yes) y = Identity (no)"
    save(
        path,
        {"inputs_embeds": EMBEDDED, "past_key_0": CACHE, "use_cache_branch": [1]},
        choose,
    )
    model = onnx.load(path)
    nodes = [
        helper.make_node("Cast", ["one"], ["yes"], to=TensorProto.BOOL),
        helper.make_node(
            "If", ["use_cache_branch"], ["y", "present_key_0"],
            then_branch=branches[0], else_branch=branches[1],
        ),
    ]  # fmt: skip
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    present = helper.make_tensor_value_info(
        "present_key_0", TensorProto.FLOAT, ["batch", 1, "total", 4]
    )
    model.graph.output.append(present)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def test_both_branches_of_a_merged_decoder_are_judged(tmp_path: Path) -> None:
    """The flag says whether there is a past: each branch runs with the sizes that belong to it."""
    found = report(merged(tmp_path / "m.onnx", open_prompt=False))
    assert found.certificate.passed, [c for c in found.certificate.checks if not c.passed]


def test_an_open_branch_of_a_merged_decoder_is_a_leak(tmp_path: Path) -> None:
    found = report(merged(tmp_path / "m.onnx", open_prompt=True))
    assert found.certificate.verdict is Verdict.NOT_CAUSAL
    assert found.leak is not None
    assert found.leak.past == 0


def masked_by(path: Path, name: str, seen: str) -> Path:
    """A graph whose mask is `seen` of places and of the input `name`."""
    body = f"""
    {KEYS} keys = Identity (query) {ATTEND.replace("seen =", "ordered =")}
    to_key = Constant <value_ints = [1, 2]> () to_row = Constant <value_ints = [1, 3]> ()
    of_key = Unsqueeze ({name}, to_key)
    of_row = Unsqueeze ({name}, to_row)
    {seen} {HIDE}
    y = Squeeze (mixed, one_axis)
    """
    return save(path, {"inputs_embeds": EMBEDDED, name: ["batch", "sequence_length"]}, body)


OPEN_TO_OTHERS = """
    zero_kind = Sub (of_key, of_key)
    other_key = Greater (of_key, zero_kind) other_row = Greater (of_row, zero_kind)
    together = And (other_key, other_row)
    seen = Or (ordered, together)
"""


@pytest.mark.parametrize(
    ("name", "seen", "words"),
    [
        ("position_ids", "seen = LessOrEqual (of_key, of_row)", "position_ids count up"),
        ("token_type_ids", OPEN_TO_OTHERS, "token_type_ids are 0"),
    ],
)
def test_other_values_of_a_fixed_input_are_probed(
    tmp_path: Path, name: str, seen: str, words: str
) -> None:
    """Restarting positions and a block of another kind: the probe sees what the proof says."""
    found = report(masked_by(tmp_path / "m.onnx", name, seen))
    (check,) = (c for c in found.certificate.checks if c.name == OTHER_VALUES)
    assert check.passed is None
    assert check.detail.endswith(f"unless {words}")
    assert found.certificate.verdict is Verdict.CONDITIONAL
    assert found.certificate.conditions == (words,)


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids"])
def test_a_mask_that_other_values_only_narrow_is_causal(tmp_path: Path, name: str) -> None:
    """Packed sequences hidden from one another: no value of the input opens the future."""
    seen = "alike = Equal (of_key, of_row) seen = And (ordered, alike)"
    if name == "position_ids":
        seen = "lower = LessOrEqual (of_key, of_row) seen = And (ordered, lower)"
    found = report(masked_by(tmp_path / "m.onnx", name, seen))
    (check,) = (c for c in found.certificate.checks if c.name == OTHER_VALUES)
    assert check.passed, check.detail
    assert found.certificate.verdict is Verdict.CAUSAL
    assert found.certificate.conditions == ()


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids"])
def test_a_probe_outweighs_a_proof_that_says_causal(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the proof blind to such inputs, the condition would be named all the same."""
    monkeypatch.setattr(proof, "_conditions", lambda question, claim: ())
    seen = OPEN_TO_OTHERS if name == "token_type_ids" else "seen = LessOrEqual (of_key, of_row)"
    found = report(masked_by(tmp_path / "m.onnx", name, seen))
    assert found.certificate.verdict is Verdict.CONDITIONAL
    assert len(found.certificate.conditions) == 1
    assert not found.certificate.passed
