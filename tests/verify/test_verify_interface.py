"""Inputs found by themselves: names, dims, caches, sizes that nodes fix, and a claimed window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from causal_attn import AttentionSpec
from causal_attn.errors import InputError
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.digest import CONTRACT_KEY, write_metadata
from causal_attn.verify import verify
from causal_attn.verify.feeds.feeder import Feeder
from causal_attn.verify.interface.discover import discover
from causal_attn.verify.interface.fixed_dims import fixed_sizes
from causal_attn.verify.interface.naming import Dims, pair_cache
from causal_attn.verify.oracle.float64 import GraphRun

CACHE: Dims = ["batch", 2, "past", 8]


@pytest.mark.parametrize(
    ("past", "presents"),
    [
        (
            ["past_key_values.0.key", "past_key_values.0.value"],
            ["present.0.key", "present.0.value"],
        ),
        (["past_key_0", "past_value_0"], ["present_key_0", "present_value_0"]),
        (["past_key", "past_value"], ["new_key", "new_value"]),
        (["past_0", "past_1"], ["present_0", "present_1"]),
        (["k_cache.0", "v_cache.0"], ["k_cache_out.0", "v_cache_out.0"]),
        (
            ["input.cache.layers.10.keys", "input.cache.layers.1.keys"],
            ["output.cache.layers.10.keys", "output.cache.layers.1.keys"],
        ),
        (["past_key_self_0", "past_value_self_0"], ["present_key_self_0", "present_value_self_0"]),
    ],
)
def test_caches_are_paired_by_number_and_part(past: list[str], presents: list[str]) -> None:
    outputs = dict.fromkeys(reversed(presents), CACHE)
    scalar: Dims = []
    pairs = pair_cache(past, {"logits": ["batch", "n", 64], "cache.0.count": scalar, **outputs})
    assert pairs == tuple(zip(past, presents, strict=True))


def test_half_a_cache_is_none() -> None:
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    assert pair_cache(past, {"present.0.key": CACHE}) == ()
    assert pair_cache(past, {"present.0.key": CACHE, "present.1.value": CACHE}) == ()


def graph_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[str | int]],
    outputs: dict[str, list[str | int]],
    weights: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    integers: tuple[str, ...] = (),
) -> onnx.ModelProto:
    def kind(name: str) -> int:
        return TensorProto.INT64 if name in integers else TensorProto.FLOAT

    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(n, kind(n), dims) for n, dims in inputs.items()],
            [helper.make_tensor_value_info(n, kind(n), dims) for n, dims in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )


@pytest.mark.parametrize("packed", [True, False])
def test_head_sizes_come_from_attention_nodes(packed: bool) -> None:
    width = 64 if packed else 16
    weights = {"w": np.zeros((32, width), np.float32), "b": np.zeros(width, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["kv"]),
        helper.make_node(
            "GroupQueryAttention",
            [*(["kv", "", ""] if packed else ["x", "kv", "kv"]), "past_key", "past_value"],
            ["y"], domain="com.microsoft", num_heads=4, kv_num_heads=2,
        ),
    ]  # fmt: skip
    inputs: dict[str, list[str | int]] = {
        "x": ["batch", "tokens", 32],
        "past_key": ["batch", 2, "past", "size"],
        "past_value": ["batch", 2, "past", "size"],
    }
    model = graph_of(nodes, inputs, {"y": ["batch", "tokens", 32]}, weights)
    assert fixed_sizes(model.graph) == {"size": 8}


def test_a_mask_of_another_sequence_is_not_the_decoders(tmp_path: Path) -> None:
    inputs: dict[str, list[str | int]] = {
        "input_ids": ["batch", "read"],
        "attention_mask": ["batch", "read"],
        "decoder_input_ids": ["batch", "written"],
        "decoder_attention_mask": ["batch", "written"],
    }
    nodes = [helper.make_node("Identity", ["decoder_input_ids"], ["y"])]
    model = graph_of(nodes, inputs, {"y": ["batch", "written"]}, {}, (*inputs, "y"))
    interface = discover(model, tmp_path / "m.onnx", tokens_axis={"decoder_input_ids": 1})
    assert interface.mask == "decoder_attention_mask"
    assert dict(interface.total) == {"decoder_attention_mask": 1}
    assert "attention_mask" in interface.known


def test_a_cache_along_axis_0_is_decoded(tmp_path: Path) -> None:
    """No batch: tokens first. An axis of 0 is an axis."""
    inputs: dict[str, list[str | int]] = {
        "inputs_embeds": ["sequence_length", 4],
        "past_key": ["past_sequence_length", 4],
    }
    nodes = [
        helper.make_node("Concat", ["past_key", "inputs_embeds"], ["present_key"], axis=0),
        helper.make_node("Neg", ["inputs_embeds"], ["logits"]),
    ]
    outputs: dict[str, list[str | int]] = {
        "logits": ["sequence_length", 4],
        "present_key": ["total_sequence_length", 4],
    }
    path = tmp_path / "m.onnx"
    onnx.save(graph_of(nodes, inputs, outputs, {}), path)
    interface = discover(onnx.load(path), path)
    assert dict(interface.past) == {"past_key": 0}
    assert interface.cache == (("past_key", "present_key"),)
    (report,) = verify(path, lengths=(1, 5)).variants
    assert "decode is equivalent" in {check.name for check in report.certificate.checks}


@pytest.mark.parametrize("dim", ["2*sequence_length", "sequence_length*2"])
def test_an_input_with_a_multiple_of_the_tokens_is_fed_at_its_size(
    tmp_path: Path, dim: str
) -> None:
    """Two rows a token beside the embeddings: any other number of rows does not run."""
    inputs: dict[str, list[str | int]] = {
        "inputs_embeds": ["batch", "sequence_length", 4],
        "pairs": ["batch", dim, 2],
    }
    nodes = [
        helper.make_node("Shape", ["inputs_embeds"], ["shape"]),
        helper.make_node("Reshape", ["pairs", "shape"], ["side_by_side"]),
        helper.make_node("Add", ["inputs_embeds", "side_by_side"], ["logits"]),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(graph_of(nodes, inputs, {"logits": ["batch", "sequence_length", 4]}, {}), path)
    feeder = discover(onnx.load(path), path).feeder
    for sizes in feeder.cases((1, 3, 7)):
        feeds = feeder.make(sizes, np.random.default_rng(0))
        assert feeds["pairs"].shape == (sizes["batch"], 2 * sizes["tokens"], 2)
    (report,) = verify(path, lengths=(1, 5)).variants
    assert {"influence proof", "parity", "future is invisible"} <= {
        check.name for check in report.certificate.checks if check.passed
    }


def test_a_size_that_an_expression_does_not_have_is_said() -> None:
    tensor = TensorContract(name="x", dtype="float32", dims=("tokens - 2", "8 // left"))
    contract = Contract(inputs=(tensor,), outputs=(tensor,), form="captured", opset=18)
    feeder = Feeder(contract=contract)
    assert feeder.shape(tensor, {"tokens": 5, "left": 2}) == (3, 4)
    with pytest.raises(InputError, match=r"`x` must have a size for 'tokens - 2'.*got -1"):
        feeder.shape(tensor, {"tokens": 1, "left": 2})
    with pytest.raises(InputError, match=r"for '8 // left' at every length, got None"):
        feeder.shape(tensor, {"tokens": 5, "left": 0})
    with pytest.raises(InputError, match="got none for 'left'"):
        feeder.shape(tensor, {"tokens": 5})


def test_gather_elements_reaches_past_64_rows(tmp_path: Path) -> None:
    """numpy.choose, which onnx's evaluator takes, does not."""
    table = np.arange(300, dtype=np.float32).reshape(1, 300)
    node = helper.make_node("GatherElements", ["table", "ids"], ["y"], axis=1)
    dims: dict[str, list[str | int]] = {"ids": [1, "n"]}
    onnx.save(
        graph_of([node], dims, {"y": [1, "n"]}, {"table": table}, ("ids",)), tmp_path / "m.onnx"
    )
    result = GraphRun(tmp_path / "m.onnx", wide=True)({"ids": np.array([[0, 64, 299, -1]])})["y"]
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, [[0, 64, 299, 299]])


@pytest.mark.parametrize(("claimed", "passed"), [(4, True), (5, True), (3, False)])
def test_a_claimed_window_is_kept(tmp_path: Path, claimed: int, passed: bool) -> None:
    """The graph has a window of 4: a narrower claim is wrong, a wider one is for parity to say."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        attention (float[batch, heads, tokens, features] q,
                   float[batch, heads, tokens, features] k,
                   float[batch, heads, tokens, features] v)
               => (float[batch, heads, tokens, features] output)
        <float minus_inf = {-inf}, int64 one = {1}, int64 back = {-3}, bool true = {1}>
        {
            tokens = Shape <start = 2, end = 3> (q)
            square = Concat <axis = 0> (tokens, tokens)
            width = Shape <start = 3> (q)
            width_float = Cast <to = 1> (width)
            root = Sqrt (width_float)
            keys = Transpose <perm = [0, 1, 3, 2]> (k)
            product = MatMul (q, keys)
            scores = Div (product, root)
            all = Expand (true, square)
            past = Trilu <upper = 0> (all)
            band = Trilu <upper = 1> (past, back)
            masked = Where (band, scores, minus_inf)
            weights = Softmax <axis = -1> (masked)
            output = MatMul (weights, v)
        }
        """
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    dims = ("batch", "heads", "tokens", "features")
    tensors = [TensorContract(name=n, dtype="float32", dims=dims) for n in (*"qkv", "output")]
    contract = Contract(
        inputs=tuple(tensors[:3]), outputs=(tensors[3],), form="decomposed", opset=18,
        spec=AttentionSpec(window=claimed),
    )  # fmt: skip
    write_metadata(path, {CONTRACT_KEY: contract.to_json()})
    checks = {c.name: c for c in verify(path, lengths=(1, 13)).variants[0].certificate.checks}
    assert checks["window"].passed is passed, checks["window"].detail
    assert checks["parity"].passed is (claimed == 4)
