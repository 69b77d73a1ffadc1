"""Attention operators, ONNX's and ONNX Runtime's: masks, windows, caches, known traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from influence_graphs import Builder, Dims, single
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from causal_attn.package.certificate import Verdict
from causal_attn.verify.influence import Claim, Proof, prove

MICROSOFT = "com.microsoft"
QKV4: list[Dims] = [["b", 4, "tokens", 8]] * 3
QKV3: list[Dims] = [["b", "tokens", 32]] * 3
LOWER = np.tri(33, dtype=bool)


def proof_of(model: ModelProto, axis: int, **options: Any) -> Proof:
    tokens = {item.name: axis for item in model.graph.input if item.name.startswith("x")}
    return prove(model, Claim(tokens=tokens, outputs={"y": axis}, **options))


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_causal_attention(opset: int) -> None:
    proof = proof_of(single("Attention", *QKV4, opset=opset, is_causal=1), 2)
    assert np.array_equal(proof.outputs["y"], LOWER)
    if opset == 25:
        assert proof.verdict is Verdict.CAUSAL
    else:
        # The kernel for these opsets adds the lowest float (trap 10).
        assert proof.verdict is Verdict.CONDITIONAL
        assert proof.score_bound == pytest.approx(1.7e38, rel=0.01)


def test_attention_on_three_axes_with_grouped_heads() -> None:
    dims: list[Dims] = [["b", "tokens", 32], ["b", "tokens", 16], ["b", "tokens", 16]]
    model = single("Attention", *dims, opset=25, is_causal=1, q_num_heads=4, kv_num_heads=2)
    assert proof_of(model, 1).verdict is Verdict.CAUSAL


def test_attention_weights_output() -> None:
    model = single(
        "Attention", *QKV4, opset=25, is_causal=1, outputs=4, output=3, qk_matmul_output_mode=3
    )
    assert proof_of(model, 2).verdict is Verdict.CAUSAL


def test_attention_scores_output_leaks() -> None:
    # The raw scores of the future are there to be read, mask or not.
    model = single("Attention", *QKV4, opset=25, is_causal=1, outputs=4, output=3)
    assert proof_of(model, 2).verdict is Verdict.NOT_CAUSAL


@pytest.mark.parametrize("kind", ["bool", "float", "finite"])
def test_attention_with_a_stored_mask(kind: str) -> None:
    allowed = np.tri(7, dtype=bool)
    fill = -1e4 if kind == "finite" else -np.inf
    mask = allowed if kind == "bool" else np.where(allowed, 0, fill).astype(np.float32)
    dims: list[Dims] = [["b", 4, 7, 8]] * 3
    proof = proof_of(single("Attention", *dims, opset=25, consts=[mask]), 2)
    assert proof.calls == ((7, 0),)
    assert np.array_equal(proof.outputs["y"], np.tri(7, dtype=bool))
    if kind == "finite":
        assert proof.verdict is Verdict.CONDITIONAL
        assert proof.score_bound == pytest.approx((1e4 - 104) / 2)
    else:
        assert proof.verdict is Verdict.CAUSAL


def test_mask_with_one_key_is_padded_at_opset_25() -> None:
    mask = np.ones((1, 1), bool)
    dims: list[Dims] = [["b", 4, 5, 8]] * 3
    proof = proof_of(single("Attention", *dims, opset=25, consts=[mask]), 2)
    # Only key 0 is seen by every query (trap 7), which is causal, and is said in a note.
    assert proof.verdict is Verdict.CAUSAL
    assert not proof.outputs["y"][4, 3]


def test_attention_window() -> None:
    model = single("Attention", *QKV4, opset=25, is_causal=1, left_window_size=2)
    proof = proof_of(model, 2)
    assert proof.verdict is Verdict.CAUSAL
    assert np.array_equal(proof.outputs["y"], LOWER & ~np.tri(33, k=-3, dtype=bool))
    assert any("window" in note for note in proof.notes)


def test_attention_window_to_the_right_leaks() -> None:
    proof = proof_of(single("Attention", *QKV4, opset=25, right_window_size=1), 2)
    assert proof.verdict is Verdict.NOT_CAUSAL


def cached(op: str, domain: str = "", **attributes: Any) -> ModelProto:
    b = Builder(25)
    four = domain == ""
    new: Dims = ["b", 4, "tokens", 8] if four else ["b", "tokens", 32]
    names = [b.input(name, new) for name in ("q", "k", "v")]
    past = [b.input(name, ["b", 4, "past", 8]) for name in ("past_key", "past_value")]
    between = [""] if four else ["", "", ""]
    y = b(op, *names, *between, *past, outputs=3, domain=domain, **attributes)
    return b.model({"y": y, "key": f"{y}_1"}, None)


def test_attention_with_a_past() -> None:
    model = cached("Attention", is_causal=1)
    proof = prove(
        model,
        Claim(
            tokens={"q": 2, "k": 2, "v": 2},
            past={"past_key": 2, "past_value": 2},
            outputs={"y": 2, "key": 2},
            pasts=(0, 3, 70),
            lengths=(1, 4),
        ),
    )
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert proof.outputs["y"].shape == (4, 74)
    assert np.array_equal(proof.outputs["y"], np.tri(4, 74, k=70, dtype=bool))
    assert np.array_equal(proof.outputs["key"], np.eye(74, dtype=bool))


@pytest.mark.parametrize(("held", "causal"), [(4, True), (5, True)])
def test_attention_with_an_outer_cache(held: int, causal: bool) -> None:
    """A cache of capacity 8 that new rows were written into before; `held` rows are valid."""
    b = Builder(25)
    query = b.input("q", ["b", 4, "tokens", 8])
    new = [b.input(name, ["b", 4, "tokens", 8]) for name in ("k", "v")]
    old = [b.input(name, ["b", 4, 8, 8]) for name in ("key_cache", "value_cache")]
    first = b.const([held - 3], np.int64)
    caches = [
        b("TensorScatter", cache, row, first, axis=2) for cache, row in zip(old, new, strict=True)
    ]
    length = b.const([held], np.int64)
    y = b("Attention", query, *caches, "", "", "", length, is_causal=1)
    proof = prove(
        b.model({"y": y}, None),
        Claim(tokens={"q": 2, "k": 2, "v": 2}, outputs={"y": 2}, lengths=[3]),
    )
    assert (proof.verdict is Verdict.CAUSAL) is causal, str(proof)
    assert np.array_equal(proof.outputs["y"], np.tri(3, dtype=bool))


def test_write_index_that_is_data_is_undecided() -> None:
    b = Builder(25)
    cache, row = b.input("cache", ["b", 4, 8, 8]), b.input("k", ["b", 4, "tokens", 8])
    at = b.input("write_indices", ["b"], TensorProto.INT64)
    model = b.model({"y": b("TensorScatter", cache, row, at, axis=2)}, None)
    total = {"tokens": {"k": 2}, "outputs": {"y": 2}, "lengths": [8]}
    proof = prove(model, Claim(**total))  # type: ignore[arg-type]
    assert proof.verdict is Verdict.UNDECIDED
    assert "write_indices" in proof.undecided[0]
    fixed = prove(model, Claim(known={"write_indices": 0}, **total))  # type: ignore[arg-type]
    assert fixed.verdict is Verdict.CAUSAL


def test_multi_head_attention_unidirectional() -> None:
    model = single("MultiHeadAttention", *QKV3, domain=MICROSOFT, num_heads=4, unidirectional=1)
    proof = proof_of(model, 1)
    assert proof.verdict is Verdict.CONDITIONAL
    assert proof.score_bound == pytest.approx(1.7e38, rel=0.01)


def test_multi_head_attention_without_a_mask_leaks() -> None:
    model = single("MultiHeadAttention", *QKV3, domain=MICROSOFT, num_heads=4)
    assert proof_of(model, 1).verdict is Verdict.NOT_CAUSAL


def test_multi_head_attention_with_a_past() -> None:
    model = cached("MultiHeadAttention", MICROSOFT, num_heads=4, unidirectional=1)
    proof = prove(
        model,
        Claim(
            tokens={"q": 1, "k": 1, "v": 1},
            past={"past_key": 2, "past_value": 2},
            outputs={"y": 1},
            pasts=(0, 5),
            lengths=(1, 2, 4),
        ),
    )
    assert proof.verdict is Verdict.CONDITIONAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.tri(4, 9, k=5, dtype=bool))


@pytest.mark.parametrize("queries", [1, 2])
def test_unidirectional_with_more_keys_than_queries_leaks(queries: int) -> None:
    """Trap 12: the last query row is unmasked, and with one query there is no mask at all.

    The queries are the first of five tokens; there is no past.
    """
    b = Builder()
    x = b.input("x", ["b", "tokens", 32])
    first = b("Slice", x, *(b.const([at], np.int64) for at in (0, queries, 1)))
    y = b("MultiHeadAttention", first, x, x, domain=MICROSOFT, num_heads=4, unidirectional=1)
    padded = b("Concat", y, b("Slice", x, *(b.const([at], np.int64) for at in (queries, 5, 1))),
               axis=1)  # fmt: skip
    proof = prove(
        b.model({"y": padded}, None), Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[5])
    )
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.leak is not None
    assert proof.leak.query == queries - 1


def grouped(window: int = -1, packed: bool = False, present: bool = True) -> ModelProto:
    b = Builder()
    widths = [64] if packed else [32, 16, 16]
    names = [b.input(f"x{at}", ["b", "tokens", width]) for at, width in enumerate(widths)]
    names += [""] * (3 - len(names))
    past = [b.input(name, ["b", 2, "past", 8]) for name in ("past_key", "past_value")]
    ends = [b.input("seqlens_k", ["b"], TensorProto.INT32),
            b.input("total", [], TensorProto.INT32)]  # fmt: skip
    y = b("GroupQueryAttention", *names, *past, *ends, domain=MICROSOFT,
          outputs=3 if present else 1, num_heads=4, kv_num_heads=2,
          local_window_size=window)  # fmt: skip
    return b.model({"y": y, "key": f"{y}_1"} if present else {"y": y}, None)


def grouped_proof(model: ModelProto, **options: Any) -> Proof:
    tokens = {item.name: 1 for item in model.graph.input if item.name.startswith("x")}
    return prove(
        model,
        Claim(
            tokens=tokens,
            past={"past_key": 2, "past_value": 2},
            outputs={"y": 1, "key": 2},
            **options,
        ),
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("past", [0, 4])
def test_group_query_attention(past: int, packed: bool) -> None:
    known = {"seqlens_k": np.array([past + 5 - 1]), "total": past + 5}
    proof = grouped_proof(grouped(packed=packed), lengths=[5], pasts=[past], known=known)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"], np.tri(5, past + 5, k=past, dtype=bool))


def grouped_node(model: ModelProto) -> NodeProto:
    nodes: list[NodeProto] = [*model.graph.node]
    return next(node for node in nodes if node.op_type == "GroupQueryAttention")


def test_group_query_attention_that_is_not_causal() -> None:
    model = grouped()
    grouped_node(model).attribute.append(helper.make_attribute("causal", 0))
    proof = grouped_proof(model, lengths=[5], known={"seqlens_k": np.array([4]), "total": 5})
    assert proof.verdict is Verdict.NOT_CAUSAL


@pytest.mark.parametrize(("at", "shape"), [(14, [8]), (15, [8]), (16, [1])])
def test_group_query_attention_with_inputs_that_change_the_queries(
    at: int, shape: list[int]
) -> None:
    model = grouped()
    node = grouped_node(model)
    node.input.extend([*[""] * (at - len(node.input)), "extra"])
    value = np.ones(shape, np.int32 if at == 16 else np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, "extra"))
    proof = grouped_proof(model, lengths=[5], known={"seqlens_k": np.array([4]), "total": 5})
    assert proof.verdict is Verdict.UNDECIDED


def test_new_tokens_after_a_past_need_their_present() -> None:
    """ONNX Runtime 1.32 reads them from stray memory otherwise."""
    proofs = [
        prove(
            grouped(present=present),
            Claim(
                tokens={f"x{at}": 1 for at in range(3)},
                past={"past_key": 2, "past_value": 2},
                outputs={"y": 1},
                lengths=[5],
                pasts=[4],
                known={"seqlens_k": np.array([8]), "total": np.array(9)},
            ),
        )
        for present in (True, False)
    ]
    assert [proof.verdict for proof in proofs] == [Verdict.CAUSAL, Verdict.UNDECIDED]
    assert "stray memory" in str(proofs[1])


def shared_cache(total: int) -> Proof:
    """Queries in the third and fourth of five places, all of which the past holds."""
    b = Builder()
    x = b.input("x", [1, "tokens", 16])
    query = b("Slice", x, *(b.const([at], np.int64) for at in (2, 4, 1)))
    past = b("Unsqueeze", x, b.const([1], np.int64))
    none = b.const(np.zeros((1, 0, 16)), np.float32)
    ends = [b.const([total - 1], np.int32), b.const(total, np.int32)]
    sink = ["", "", "", "", b.const([-np.inf], np.float32)]
    y = b("GroupQueryAttention", query, none, none, past, past, *ends, *sink, domain=MICROSOFT,
          num_heads=1, kv_num_heads=1)  # fmt: skip
    before, after = (
        b("Slice", x, *(b.const([at], np.int64) for at in (start, end, 1)))
        for start, end in ((0, 2), (4, 5))
    )
    padded = b("Concat", before, y, after, axis=1)
    return prove(
        b.model({"y": padded}, None), Claim(tokens={"x": 1}, outputs={"y": 1}, lengths=[5])
    )


def test_a_shared_cache_holds_the_keys_of_the_queries() -> None:
    proof = shared_cache(4)
    assert proof.verdict is Verdict.CAUSAL, str(proof)
    assert np.array_equal(proof.outputs["y"][2:4], np.tri(2, 5, k=2, dtype=bool))


def test_a_shared_cache_with_a_total_too_large_leaks() -> None:
    proof = shared_cache(5)
    assert proof.verdict is Verdict.NOT_CAUSAL
    assert proof.leak is not None
    assert proof.leak.query == 2


@pytest.mark.parametrize("total", [1, 6])
def test_a_shared_cache_without_room_is_undecided(total: int) -> None:
    assert shared_cache(total).verdict is Verdict.UNDECIDED


def test_group_query_attention_window_counts_the_token_itself() -> None:
    known = {"seqlens_k": np.array([4]), "total": 5}
    proof = grouped_proof(grouped(window=2), lengths=[5], known=known)
    assert np.array_equal(proof.outputs["y"], np.tri(5, dtype=bool) & ~np.tri(5, k=-2, dtype=bool))


def test_group_query_attention_with_unknown_lengths_is_undecided() -> None:
    proof = grouped_proof(grouped(), lengths=[5])
    assert proof.verdict is Verdict.UNDECIDED
    assert "seqlens_k" in proof.undecided[0]


def test_group_query_attention_refuses_a_total_in_place_of_total_less_one() -> None:
    """Trap 14: `seqlens_k` wants total - 1; a total reads a slot that nobody wrote."""
    known = {"seqlens_k": np.array([5]), "total": 5}
    proof = grouped_proof(grouped(), lengths=[5], known=known)
    assert proof.verdict is Verdict.UNDECIDED
    assert "seqlens_k" in proof.undecided[0]


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_packed_weights_attention(unidirectional: int) -> None:
    weight, bias = np.ones((32, 96), np.float32), np.ones(96, np.float32)
    model = single(
        "Attention", ["b", "tokens", 32], consts=[weight, bias], domain=MICROSOFT, num_heads=4,
        unidirectional=unidirectional,
    )  # fmt: skip
    verdict = proof_of(model, 1).verdict
    assert verdict is (Verdict.CONDITIONAL if unidirectional else Verdict.NOT_CAUSAL)


@pytest.mark.parametrize("opset", [23])
def test_rotary_embedding_stays_in_its_row(opset: int) -> None:
    cache = np.full((1, 40, 4), 0.5, np.float32)[:, :9]
    model = single("RotaryEmbedding", ["b", 4, 9, 8], opset=opset, consts=[cache, cache])
    proof = proof_of(model, 2)
    assert np.array_equal(proof.outputs["y"], np.eye(9, dtype=bool))
    assert any("past does not matter" in note for note in proof.notes)
